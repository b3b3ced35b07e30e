"""Stops by hand: models whose pods stay at zero until a request comes. Pure: times are arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wisp_operator.core.demand import Report

REPORTED_S = 3.0  # time in which a gateway reports demand again


@dataclass
class Stop:
    """One stop by hand.

    Attributes:
        arrivals: requests that had come before it, by the gateway's count.
        at: its time, Unix seconds.
    """

    arrivals: int
    at: float


class Stops:
    """The stops by hand that hold, by model."""

    def __init__(self) -> None:
        self._stops: dict[str, Stop] = {}

    def add(self, key: str, arrivals: int, now: float) -> None:
        """Keep a model at zero from ``now`` on, until there are more than ``arrivals`` requests."""
        self._stops[key] = Stop(arrivals, now)

    def record(self, reports: Mapping[str, Report], now: float) -> None:
        """Take over the count of a gateway that was started again, which is from zero on."""
        for key, report in reports.items():
            stop = self._stops.get(key)
            if stop and report.arrivals < stop.arrivals and now - stop.at >= REPORTED_S:
                stop.arrivals = 0

    def holds(self, key: str, demand: Report, now: float) -> bool:
        """Return whether a model was stopped by hand, and no request has come, or waits again, since."""
        stop = self._stops.get(key)
        if stop is None:
            return False
        waits_again = demand.waiting > 0 and now - stop.at >= REPORTED_S
        if waits_again or demand.arrivals > stop.arrivals:
            self.forget(key)
        return key in self._stops

    def forget(self, key: str) -> None:
        """Drop the stop of a model."""
        self._stops.pop(key, None)
