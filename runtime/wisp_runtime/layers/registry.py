"""Code of each kind of layer, by the type of its spec.

A new mixer or feed-forward block is a spec in ``wisp_plan/spec``, a file in ``mixers/`` or ``ffn/``, and a
line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import LayerSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.errors import ModelUnsupported
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.ffn.dense import DenseMLP
from wisp_runtime.layers.ffn.moe import MixtureOfExperts
from wisp_runtime.layers.mixers.attention import Attention
from wisp_runtime.layers.mixers.delta_net import DeltaNet
from wisp_runtime.layers.mixers.mamba import Mamba


class Mixer(Protocol):
    """A token mixer of one layer."""

    def __call__(self, x: Array, batch: Batch, cache: ModelCache, rows: Array | None = None) -> Array:
        """Map ``[N, D]`` to ``[N, D]``, updating what the layer keeps of each sequence in ``cache``.

        Args:
            rows: ``[R]``, the rows of the result that are wanted, ``[R, D]``; the cache is updated for all.
        """
        ...


class Ffn(Protocol):
    """A feed-forward block of one layer."""

    def __call__(self, x: Array) -> Array:
        """Map ``[N, D]`` to ``[N, D]``."""
        ...


MIXERS: dict[type[Any], Callable[[LayerContext, Any], Mixer]] = {
    AttentionSpec: Attention,
    DeltaNetSpec: DeltaNet,
    MambaSpec: Mamba,
}
"""Constructor of each kind of mixer."""

FFNS: dict[type[Any], Callable[[LayerContext, Any], Ffn]] = {DenseSpec: DenseMLP, MoeSpec: MixtureOfExperts}
"""Constructor of each kind of feed-forward block."""


def require_layers(layers: tuple[LayerSpec, ...]) -> None:
    """Check that there is code for every layer.

    Raises:
        ModelUnsupported: there is none for a mixer or a feed-forward block.
    """
    for layer in dict.fromkeys(layers):
        for mixer in layer.mixers:
            _require(mixer, MIXERS)
        if layer.ffn is not None:
            _require(layer.ffn, FFNS)


def _require(part: object, known: Mapping[type[Any], object]) -> None:
    if type(part) not in known:
        names = ", ".join(kind.__name__ for kind in known)
        raise ModelUnsupported(
            f"no code for layers with {type(part).__name__}; there is code for {names}. "
            "Choose a model of another architecture."
        )
