"""Demand reported by gateways (the contract *Demand* of docs/contracts.md), and its sum.

Pure: no clock, no network. Each gateway reports its own requests; the sum over recent reports is the demand
for a model. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STALE_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """One gateway's report on one model; units as in :class:`wisp_operator.core.observation.Demand`."""

    waiting: int
    running: int
    arrivals: int
    idle_s: float | None
    at: float


class DemandAggregator:
    """The last report of every gateway, by model."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[str, Report]] = {}

    def record(self, document: Mapping[str, Any], now: float) -> None:
        """Store one gateway's report, received at ``now`` seconds.

        Raises:
            ValueError: the document breaks the contract.
        """
        try:
            models = {str(key): _report(entry, now) for key, entry in document["models"].items()}
            gateway = str(document["gateway"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a demand report (docs/contracts.md, Demand): {error!r}") from error
        silent = [name for name, reports in self._reports.items() if _is_silent(reports, now)]
        for name in silent:  # a gateway's pod has a new name after every restart
            del self._reports[name]
        self._reports[gateway] = models

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
        )


def _is_silent(models: Mapping[str, Report], now: float) -> bool:
    return all(now - report.at >= STALE_AFTER_S for report in models.values())


def _report(entry: Mapping[str, Any], now: float) -> Report:
    idle_s = entry.get("idleSeconds")
    return Report(
        waiting=int(entry["waiting"]),
        running=int(entry["running"]),
        arrivals=int(entry.get("arrivals", 0)),
        idle_s=None if idle_s is None else float(idle_s),
        at=now,
    )
