"""What gateways say of their requests: the contract *Demand* of docs/contracts.md, and its sum.

Pure: no clock, no network. Each gateway speaks for itself; the sum over those heard lately is the demand
for a model. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORGET_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """What one gateway said of one model; units as in :class:`wisp_operator.core.observation.Demand`."""

    waiting: int
    running: int
    arrivals: int
    idle_s: float | None
    at: float


class DemandBook:
    """The last report of every gateway, by model."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[str, Report]] = {}

    def record(self, document: Mapping[str, Any], now: float) -> None:
        """Take one gateway's report, given at ``now`` seconds.

        Raises:
            ValueError: the document is not as the contract says.
        """
        try:
            models = {str(key): _report(found, now) for key, found in document["models"].items()}
            gateway = str(document["gateway"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a demand report (docs/contracts.md, Demand): {error!r}") from error
        silent = [name for name, told in self._reports.items() if _is_silent(told, now)]
        for name in silent:  # a gateway's pod has a new name after every restart
            del self._reports[name]
        self._reports[gateway] = models

    def total(self, key: str, now: float) -> Report:
        """Requests of a model over all gateways; one that fell silent no longer counts."""
        reports = [
            models[key]
            for models in self._reports.values()
            if key in models and now - models[key].at < FORGET_AFTER_S
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
    return all(now - report.at >= FORGET_AFTER_S for report in models.values())


def _report(found: Mapping[str, Any], now: float) -> Report:
    idle_s = found.get("idleSeconds")
    return Report(
        waiting=int(found["waiting"]),
        running=int(found["running"]),
        arrivals=int(found.get("arrivals", 0)),
        idle_s=None if idle_s is None else float(idle_s),
        at=now,
    )
