"""Counts of the experts that decode steps send tokens to."""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.expert_reads import Hits, mixtures
from wisp_runtime.layers.expert_load import ExpertLoad


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
        chosen = [moe.router.chosen for _, moe in mixtures(self.spec)]
        if not tokens.size or not tokens.all():
            return None
        return {
            layer: float(hit) * self.rows * each / float(routed)
            for layer, hit, routed, each in zip(self.load.layers, hits, tokens, chosen, strict=True)
        }
