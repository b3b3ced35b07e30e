"""Experts that a step sends tokens to if routing is uniform, the worst case; shares of weights it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_plan.spec.weight import WeightSpec

Hits = Mapping[int, float]
"""Mean number of experts hit in a step, by layer."""


def uniform_hits(spec: ModelSpec, tokens: float) -> Hits:
    """Return ``E (1 - (1 - K / E)^N)`` of each mixture, if each of N tokens chooses any K experts alike."""
    return {
        index: moe.router.experts * (1 - (1 - moe.router.chosen / moe.router.experts) ** tokens)
        for index, moe in mixtures(spec)
    }


def experts_of_layer(weight: WeightSpec) -> int | None:
    """Return the layer whose experts' weight this is; None: it is another weight."""
    prefix, is_experts, _ = weight.name.partition(".experts.")
    return int(prefix.rpartition(".")[2]) if is_experts else None


def read_share(weight: WeightSpec, hits: Hits) -> float:
    """Return the share of a weight that a step reads: of experts those that are hit, of others all."""
    layer = experts_of_layer(weight)
    return 1.0 if layer is None else hits[layer] / weight.shape[0]


def multiplied_share(spec: ModelSpec, weight: WeightSpec) -> float:
    """Return the share of a weight that each token is multiplied with: of experts those that it chooses."""
    layer = experts_of_layer(weight)
    if layer is None:
        return 1.0
    moe = spec.layers[layer].ffn
    assert isinstance(moe, MoeSpec)
    return moe.router.chosen / moe.router.experts


def mixtures(spec: ModelSpec) -> Iterable[tuple[int, MoeSpec]]:
    """Yield the mixtures of a model with the indices of their layers."""
    return ((index, layer.ffn) for index, layer in enumerate(spec.layers) if isinstance(layer.ffn, MoeSpec))
