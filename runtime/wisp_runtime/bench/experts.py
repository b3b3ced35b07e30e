"""Experts that a step sends tokens to: measured, and expected if routing is uniform, the worst case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_plan.spec.weight import WeightSpec
from wisp_runtime.layers.expert_load import ExpertLoad

Hits = Mapping[int, float]
"""Mean number of experts hit in a step, by layer."""


def uniform_hits(spec: ModelSpec, tokens: float) -> Hits:
    """Return ``E (1 - (1 - K / E)^N)`` of each mixture, if each of N tokens chooses any K experts alike."""
    return {
        index: moe.router.experts * (1 - (1 - moe.router.chosen / moe.router.experts) ** tokens)
        for index, moe in _mixtures(spec)
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


def _mixtures(spec: ModelSpec) -> Iterable[tuple[int, MoeSpec]]:
    return ((index, layer.ffn) for index, layer in enumerate(spec.layers) if isinstance(layer.ffn, MoeSpec))


@dataclass(frozen=True, slots=True)
class HitCounter:
    """Counts the experts hit in decode steps of one number of rows.

    Attributes:
        load: the model's counters.
        spec: the model.
        rows: rows of each step that are sent to experts (:meth:`.Target.routed_rows`).
        skip: outputs of the engine before the steps that count.
    """

    load: ExpertLoad
    spec: ModelSpec
    rows: int
    skip: int

    def on_output(self, number: int) -> None:
        """Begin to count at an output of the engine."""
        if number == self.skip:
            self.load.restart()

    def hits(self) -> Hits | None:
        """Return what was counted since then; None: nothing, or there are no experts."""
        tokens, hits = self.load.read().swapaxes(0, 1).sum(axis=2)
        chosen = [moe.router.chosen for _, moe in _mixtures(self.spec)]
        if not tokens.size or not tokens.all():
            return None
        return {
            layer: float(hit) * self.rows * each / float(routed)
            for layer, hit, routed, each in zip(self.load.layers, hits, tokens, chosen, strict=True)
        }
