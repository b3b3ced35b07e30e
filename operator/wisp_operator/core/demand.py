"""Demand reported by gateways (the contract *Demand* of docs/contracts.md), and its sum.

Pure: no clock, no network. Each gateway reports its own requests; the sum over recent reports is the demand
for a model. Names and numbers are bounded here, at the border. Nothing is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from wisp_http.trace_context import MAX_CONTEXTS, is_context

STALE_AFTER_S = 10.0
MAX_REPORT_BYTES = 2 << 20
MAX_GATEWAYS = 256
MAX_MODELS = 10_000
MAX_NAME_CHARS = 512
MAX_REQUESTS = 1_000_000
MAX_ARRIVALS = 1 << 53
MAX_IDLE_S = 1e9
MAX_TRACES = 16
REFUSAL = "not a demand report (docs/contracts.md, Demand)"
TOO_LARGE = f"{REFUSAL}: it has more than {MAX_REPORT_BYTES} bytes"


@dataclass(frozen=True, slots=True)
class Report:
    """One gateway's report on one model; units as in :class:`wisp_operator.core.observation.Demand`.

    Attributes:
        at: time of the report, Unix seconds.
        ready: pods that the gateway gives requests; None: it does not say. In a sum, the fewest of a gateway
            with waiting requests.
        traces: ``traceparent`` of the first waiting requests whose spans are kept.
    """

    waiting: int
    running: int
    arrivals: int
    idle_s: float | None
    at: float
    ready: int | None = None
    traces: tuple[str, ...] = ()


class DemandAggregator:
    """The last report of every gateway, by model."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[str, Report]] = {}

    def record(self, document: object, now: float) -> dict[str, Report]:
        """Store one gateway's report, received at ``now`` seconds, and return it by model.

        Raises:
            ValueError: the document breaks the contract or its limits, or too many gateways report.
        """
        fields = _object(document, "a demand report")
        gateway = _name(fields.get("gateway"), "gateway")
        entries = _object(fields.get("models"), "models")
        if len(entries) > MAX_MODELS:
            raise ValueError(f"{REFUSAL}: models has more than {MAX_MODELS} entries")
        models = {_name(key, "a model"): _report(entry, now) for key, entry in entries.items()}
        silent = [name for name, reports in self._reports.items() if _is_silent(reports, now)]
        for name in silent:  # a gateway's pod has a new name after every restart
            del self._reports[name]
        if gateway not in self._reports and len(self._reports) >= MAX_GATEWAYS:
            raise ValueError(f"{REFUSAL}: {MAX_GATEWAYS} other gateways report already")
        self._reports[gateway] = models
        return models

    def total(self, key: str, now: float) -> Report:
        """Sum the requests of a model over all gateways; one that fell silent no longer counts."""
        reports = [
            models[key]
            for models in self._reports.values()
            if key in models and now - models[key].at < STALE_AFTER_S
        ]
        idle = [report.idle_s + now - report.at for report in reports if report.idle_s is not None]
        return Report(
            waiting=sum(report.waiting for report in reports),
            running=sum(report.running for report in reports),
            arrivals=sum(report.arrivals for report in reports),
            idle_s=min(idle, default=None),
            at=now,
            ready=min(
                (report.ready for report in reports if report.waiting and report.ready is not None),
                default=None,
            ),
            traces=tuple(islice(chain.from_iterable(report.traces for report in reports), MAX_TRACES)),
        )


def _is_silent(models: Mapping[str, Report], now: float) -> bool:
    return all(now - report.at >= STALE_AFTER_S for report in models.values())


def _report(document: object, now: float) -> Report:
    entry = _object(document, "a model's demand")
    idle_s = entry.get("idleSeconds")
    return Report(
        waiting=_count(entry, "waiting", MAX_REQUESTS),
        running=_count(entry, "running", MAX_REQUESTS),
        arrivals=_count(entry, "arrivals", MAX_ARRIVALS) if "arrivals" in entry else 0,
        idle_s=None if idle_s is None else float(_number(idle_s, "idleSeconds", MAX_IDLE_S)),
        at=now,
        ready=_count(entry, "ready", MAX_REQUESTS) if "ready" in entry else None,
        traces=_traces(entry.get("traces", [])),
    )


def _count(entry: Mapping[str, Any], name: str, high: int) -> int:
    value = _number(entry.get(name), name, high)
    if not isinstance(value, int):
        raise ValueError(f"{REFUSAL}: {name} must be an integer")
    return value


def _traces(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_CONTEXTS or not all(map(is_context, value)):
        raise ValueError(f"{REFUSAL}: traces must be a list of at most {MAX_CONTEXTS} sampled traceparents")
    return tuple(value)


def _number(value: object, name: str, high: float) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
        raise ValueError(f"{REFUSAL}: {name} must be a number between 0 and {high:.0f}")
    return value


def _name(value: object, name: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS:
        raise ValueError(f"{REFUSAL}: {name} must be a name of at most {MAX_NAME_CHARS} characters")
    return value


def _object(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{REFUSAL}: {name} must be an object")
    return value
