"""Metrics of models: wakes that ended, and the gauges that a scrape reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wisp_gateway.metrics import Metrics
from wisp_gateway.reporting.feed.wakes import ANSWER, OUTCOMES
from wisp_gateway.routing.registry import ModelRegistry

PHASES = ("schedule", "import", "pull", "weights", "kernels", "firstToken")
OTHER_PHASES = "other"


def count_wake(metrics: Metrics, row: Mapping[str, Any]) -> None:
    """Count a wake that ended; of one that made its model ready, the time of each phase."""
    metrics.wakes_ended.add(1, row["key"], row["outcome"])
    phases = row["phases"] if row["outcome"] == "ready" else ()
    for phase in (phase for phase in phases if phase["name"] != ANSWER):
        name = phase["name"] if phase["name"] in PHASES else OTHER_PHASES
        metrics.wake_phases.add(phase["seconds"], row["key"], name)


def scrape(metrics: Metrics, registry: ModelRegistry, *, is_synced: bool) -> bytes:
    """Read the gauges, and return all metrics as Prometheus' text."""
    for gauge in (metrics.waiting, metrics.running, metrics.pods, metrics.state):
        gauge.clear()
    for state in registry.states():
        model = state.model.key
        metrics.waiting.set(len(state.queue), model)
        metrics.running.set(state.running, model)
        metrics.tokens.set(state.tokens, model)
        _begin(metrics, model)
        metrics.pods.set(state.ready, model)
        metrics.state.set(1, model, state.effective_state)
    metrics.has_snapshot.set(int(is_synced))
    metrics.operator_away.set(int(registry.is_operator_away()))
    metrics.keep_only({state.model.key for state in registry.states()})
    return metrics.render()


def _begin(metrics: Metrics, model: str) -> None:
    """Begin a model's series at 0, so that ``rate`` and ``increase`` include the first event of each."""
    for counter in (metrics.retries, metrics.wakes, metrics.received, metrics.sent):
        counter.add(0, model)
    for outcome in OUTCOMES:
        metrics.wakes_ended.add(0, model, outcome)
    for phase in (*PHASES, OTHER_PHASES):
        metrics.wake_phases.add(0, model, phase)
    for histogram in (
        metrics.cold_start,
        metrics.hold,
        metrics.first_byte,
        metrics.first_token,
        metrics.per_token,
        metrics.request,
    ):
        histogram.begin(model)
