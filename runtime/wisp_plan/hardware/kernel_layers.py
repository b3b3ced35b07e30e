"""Layers that GPUs have no kernels for yet; the CPU computes all of them.

Where a kernel is added, its line here is removed: until then a start on a GPU, ``wisp fit`` and the operator
refuse such a model in one sentence, before a weight is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from wisp_plan.errors import LayersUnsupported
from wisp_plan.hardware.kernel_limits import excessive_sizes
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import LayerSpec, ParallelSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec

T = TypeVar("T")
HasPart = Callable[[LayerSpec], bool]


def _mixer(kind: type[T], has_trait: Callable[[T], bool] = lambda _: True) -> HasPart:
    return lambda layer: any(isinstance(mixer, kind) and has_trait(mixer) for mixer in layer.mixers)


def _mlp(has_trait: Callable[[DenseSpec], bool]) -> HasPart:
    """Return whether a layer's MLP, or the shared expert of its mixture, has a trait."""
    return lambda layer: any(isinstance(mlp, DenseSpec) and has_trait(mlp) for mlp in _mlps(layer))


def _mlps(layer: LayerSpec) -> tuple[object, ...]:
    return layer.ffn, layer.ffn.shared if isinstance(layer.ffn, MoeSpec) else None


WITHOUT_KERNELS: Mapping[str, HasPart] = {
    "Mamba-2": _mixer(MambaSpec),
    "mixers in parallel": lambda layer: isinstance(layer.mixer, ParallelSpec),
    "MLPs with activations other than gated SiLU": _mlp(lambda mlp: mlp.activation != "silu"),
    "experts in a latent space": lambda layer: (
        isinstance(layer.ffn, MoeSpec) and layer.ffn.latent is not None
    ),
    "scaled results of an MLP": _mlp(lambda mlp: (mlp.gate_scale, mlp.scale) != (1, 1)),
    "norms behind a block": lambda layer: layer.norms.follow,
}
"""What lacks kernels, for people, and whether a layer has it."""

SCALED = "scaled embeddings or logits"
"""What lacks kernels of a model beside its layers."""


def missing_kernels(spec: ModelSpec) -> tuple[str, ...]:
    """Return what a model has that GPUs lack kernels for, for people."""
    layers = [group.spec for group in spec.groups()]
    missing = tuple(name for name, is_in in WITHOUT_KERNELS.items() if any(map(is_in, layers)))
    is_scaled = (spec.embedding_scale, spec.logits_scale) != (1, 1)
    return (*missing, SCALED) if is_scaled else missing


def require_kernels(spec: ModelSpec) -> None:
    """Refuse a model with layers or sizes that no GPU has kernels for.

    Raises:
        LayersUnsupported: names them and the remedy.
    """
    remedy = "Serve it on the CPU (--device cpu), or choose another model."
    if missing := missing_kernels(spec):
        *others, last = missing
        names = f"{', '.join(others)} and {last}" if others else last
        raise LayersUnsupported(f"no GPU kernels for {names}, which {spec.architecture} has. {remedy}")
    if sizes := excessive_sizes(spec):
        raise LayersUnsupported(
            f"no GPU kernels for the sizes of this {spec.architecture}: {'; '.join(sizes)}. {remedy}"
        )
