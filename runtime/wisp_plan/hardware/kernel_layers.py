"""Layers that GPUs have no kernels for yet; the CPU computes all of them.

Where a kernel is added, its line here is removed: until then a start on a GPU, ``wisp fit`` and the operator
refuse such a model in one sentence, before a weight is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wisp_plan.errors import RequestInvalid
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import LayerSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec

WITHOUT_KERNELS: Mapping[str, Callable[[LayerSpec], bool]] = {
    "Gated DeltaNet": lambda layer: isinstance(layer.mixer, DeltaNetSpec),
    "Mamba-2": lambda layer: isinstance(layer.mixer, MambaSpec),
    "mixtures of experts": lambda layer: isinstance(layer.ffn, MoeSpec),
    "activations other than gated SiLU": lambda layer: (
        isinstance(layer.ffn, DenseSpec) and layer.ffn.activation != "silu"
    ),
    "attention with an output gate": lambda layer: (
        isinstance(layer.mixer, AttentionSpec) and layer.mixer.has_output_gate
    ),
    "zero-centred norms": lambda layer: layer.norms.is_zero_centred,
}
"""What lacks kernels, for people, and whether a layer has it."""


def missing_kernels(spec: ModelSpec) -> tuple[str, ...]:
    """Return what a model has that GPUs lack kernels for, for people."""
    layers = [group.spec for group in spec.groups()]
    return tuple(name for name, is_in in WITHOUT_KERNELS.items() if any(map(is_in, layers)))


def require_kernels(spec: ModelSpec) -> None:
    """Refuse a model with layers that no GPU has kernels for.

    Raises:
        RequestInvalid: names them and the remedy.
    """
    if missing := missing_kernels(spec):
        *others, last = missing
        names = f"{', '.join(others)} and {last}" if others else last
        raise RequestInvalid(
            f"no GPU kernels for {names}, which {spec.architecture} has. Serve it on the CPU (--device cpu), "
            "or choose another model."
        )
