"""Metrics of the operator, in Prometheus' exposition format."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

_HELP = {
    "wisp_operator_api_calls_total": "Requests to the API server, by verb and answer.",
    "wisp_operator_reconciles_total": "Reconciles of one model, by outcome.",
    "wisp_operator_status_writes_total": "Statuses written.",
    "wisp_operator_events_total": "Events emitted, by type.",
    "wisp_operator_wakes_total": "Models that left zero, by reason.",
    "wisp_operator_endpoint_requests_total": "Services changed since a gateway missed pods that are ready.",
    "wisp_operator_demand_reports_total": "Reports of gateways, by how they came.",
    "wisp_operator_takeovers_total": "Times this replica became the leader.",
}
_GAUGES = {
    "wisp_operator_is_leader": "1 if this replica is the leader.",
    "wisp_operator_models": "InferenceModels in the cache.",
    "wisp_operator_queue_length": "Models that wait for a reconcile.",
}
_SECONDS = "wisp_operator_reconcile_seconds"
_MAX_DURATIONS = 512


class Metrics:
    """Counters of this process; gauges are read when exported."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._gauges: dict[str, Callable[[], float]] = {}
        self._durations_s: deque[float] = deque(maxlen=_MAX_DURATIONS)
        self._total_s = 0.0

    def count(self, name: str, **labels: str) -> None:
        """Add one to a counter; ``name`` without ``wisp_operator_`` and ``_total``."""
        self._counts[(f"wisp_operator_{name}_total", tuple(sorted(labels.items())))] += 1

    def total(self, name: str, **labels: str) -> int:
        """Sum a counter over every series that has these labels."""
        wanted = set(labels.items())
        return sum(
            count
            for (full, labelled), count in self._counts.items()
            if full == f"wisp_operator_{name}_total" and wanted <= set(labelled)
        )

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Export what ``read`` returns as ``wisp_operator_<name>``."""
        self._gauges[f"wisp_operator_{name}"] = read

    def observe(self, seconds: float) -> None:
        """Record the duration of one reconcile."""
        self._durations_s.append(seconds)
        self._total_s += seconds

    def text(self) -> str:
        """Write everything in the exposition format."""
        lines: list[str] = []
        for name, text in _HELP.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} counter"]
            series = sorted((labels, n) for (full, labels), n in self._counts.items() if full == name)
            lines += [f"{name}{_labels(labels)} {count}" for labels, count in series]
        for name, read in self._gauges.items():
            lines += [f"# HELP {name} {_GAUGES[name]}", f"# TYPE {name} gauge", f"{name} {read():g}"]
        return "\n".join([*lines, *self._durations(), ""])

    def _durations(self) -> list[str]:
        durations_s = sorted(self._durations_s)
        lines = [f"# HELP {_SECONDS} Time of one reconcile.", f"# TYPE {_SECONDS} summary"]
        for share in (0.5, 0.99):
            index = min(len(durations_s) - 1, int(share * len(durations_s)))
            value = durations_s[index] if durations_s else 0.0
            lines.append(f'{_SECONDS}{{quantile="{share}"}} {value:.6f}')
        return [*lines, f"{_SECONDS}_sum {self._total_s:.6f}", f"{_SECONDS}_count {self.total('reconciles')}"]


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}" if labels else ""
