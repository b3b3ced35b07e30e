"""Metrics of a mixture's experts, from the engine's last report of their load."""

from __future__ import annotations

from collections.abc import Callable

from wisp_runtime.engine.transport.messages import ExpertReport
from wisp_runtime.metrics import Reading, Registry
from wisp_runtime.server.readings import Samples

Read = Callable[[ExpertReport], Samples]


def add_experts(registry: Registry, experts: Callable[[], ExpertReport | None]) -> None:
    """Register the metrics; they have no samples before the first report.

    Args:
        experts: reader of the last report.
    """

    def add(name: str, text: str, kind: str, read: Read) -> None:
        registry.add(Reading(name, text, lambda: () if (last := experts()) is None else read(last), kind))

    add(
        "wisp_expert_tokens_total",
        "Tokens sent to the expert of an index, all layers together.",
        "counter",
        lambda report: [({"expert": str(index)}, tokens) for index, tokens in enumerate(report.tokens)],
    )
    add(
        "wisp_experts_hit_total",
        "Experts sent any tokens, summed over steps and layers.",
        "counter",
        lambda report: [({}, report.hits)],
    )
    add(
        "wisp_expert_passes_total",
        "Steps times layers with experts.",
        "counter",
        lambda report: [({}, report.passes)],
    )
    add(
        "wisp_expert_busiest_ratio",
        "Tokens of a layer's busiest expert over the mean of its experts.",
        "gauge",
        lambda report: [({"layer": str(layer)}, ratio) for layer, ratio in report.busiest],
    )
