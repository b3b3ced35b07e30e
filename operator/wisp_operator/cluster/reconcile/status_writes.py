"""Rules of writing a status: whether it is due, and the fields kept from the last one.

Pure. Numbers of the moment change every second; they alone cause a write only now and then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VOLATILE = ("performance", "queue")
VOLATILE_EVERY_S = 10.0

Status = Mapping[str, Any]


def merged(status: Status, before: Status) -> dict[str, Any]:
    """Keep from ``before`` what a model at zero no longer reports: the phases of its last start."""
    result = dict(status)
    start, last = dict(status.get("coldStart", {})), before.get("coldStart", {})
    if not start.get("phases") and last.get("phases"):
        start["phases"] = last["phases"]
    for known in ("lastSeconds", "p50Seconds"):
        if known not in start and known in last:
            start[known] = last[known]
    if start:
        result["coldStart"] = start
    return result


def is_due(status: Status, before: Status, age_s: float) -> bool:
    """Whether ``status`` must be written over ``before``, which is ``age_s`` seconds old."""
    if _stable(status) != _stable(before):
        return True
    return age_s >= VOLATILE_EVERY_S and status != before


def _stable(status: Status) -> dict[str, Any]:
    return {key: value for key, value in status.items() if key not in VOLATILE}
