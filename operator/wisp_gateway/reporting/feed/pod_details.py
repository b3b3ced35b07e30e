"""Parser of a pod's ``/state``: the part that pages show, within bounds.

Pure. A pod is a tenant's, and may answer anything; past this module numbers are finite and texts short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_PHASES = 32
MAX_NUMBER = 1 << 53
MAX_NAME_CHARS = 128
LEDGER = {
    "weights": ("weightsBytes",),
    "kv": ("kvCacheBytes", "stateBytes", "snapshotBytes"),
    "workspace": ("workspaceBytes", "graphsBytes"),
    "context": ("contextBytes",),
}
"""Rows of a ledger, and the fields that each sums."""
DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_WORD = re.compile(r"[A-Za-z]{1,32}")


@dataclass(frozen=True, slots=True)
class StartPhase:
    """One phase of a start; ``progress`` from 0 to 1, None where it is not known."""

    name: str
    seconds: float
    progress: float | None


@dataclass(frozen=True, slots=True)
class PodDetails:
    """The part of a pod's ``/state`` that pages show; None where the pod does not report it yet.

    Attributes:
        gpu: name and memory in bytes.
        ledger: name and bytes of each row.
        gpu_used_bytes: GPU memory that its process holds.
    """

    phases: tuple[StartPhase, ...] = ()
    gpu: tuple[str, int] | None = None
    ledger: tuple[tuple[str, int], ...] | None = None
    context: int | None = None
    defaults: Mapping[str, float] | None = None
    kv_used: int = 0
    kv_total: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    gpu_used_bytes: int | None = None

    @property
    def started_s(self) -> float:
        """Seconds of all phases together."""
        return sum(phase.seconds for phase in self.phases)


def parse(text: bytes) -> PodDetails | None:
    """Parse a pod's ``/state``; None if it is malformed, or out of bounds."""
    try:
        document = json.loads(text)
        ledger, load = document.get("ledger"), document.get("load") or {}
        phases = document.get("phases") or []
        if len(phases) > MAX_PHASES:
            return None
        return PodDetails(
            phases=tuple(map(_phase, phases)),
            gpu=_gpu(ledger.get("gpu")) if ledger else None,
            ledger=_ledger(ledger) if ledger else None,
            context=_count(ledger, "maxContext") if ledger else None,
            defaults=_defaults(document.get("defaults")),
            kv_used=_count(load, "kvBlocksUsed"),
            kv_total=_count(load, "kvBlocksTotal"),
            prompt_tokens=_count(load, "promptTokensTotal"),
            cached_tokens=_count(load, "cachedTokensTotal"),
            gpu_used_bytes=_gpu_used(ledger) if ledger else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _phase(fields: Mapping[str, Any]) -> StartPhase:
    name = fields["name"]
    if not _WORD.fullmatch(name):
        raise ValueError(name)
    is_done, total = fields.get("state") == "done", _count(fields, "totalBytes")
    progress = min(1.0, _count(fields, "bytes") / total) if total else None
    return StartPhase(name, round(_number(fields, "seconds"), 3), 1.0 if is_done else progress)


def _ledger(fields: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    rows = [(name, sum(_count(fields, field) for field in parts)) for name, parts in LEDGER.items()]
    free = _count(fields, "availableBytes") - sum(size for _, size in rows)
    return (*rows, ("free", max(0, free)))


def _gpu(fields: Mapping[str, Any] | None) -> tuple[str, int] | None:
    if not fields:
        return None
    name = fields["name"]
    if not isinstance(name, str) or not name.isprintable():
        raise ValueError(name)
    return name[:MAX_NAME_CHARS], _count(fields, "memoryBytes")


def _gpu_used(fields: Mapping[str, Any]) -> int | None:
    if not fields.get("gpu"):
        return None
    measured = fields.get("measured") or {}
    given = "processBytes" if measured.get("processBytes") else "allocatedBytes"
    return _count(measured, given) or _count(fields, "totalBytes")


def _defaults(fields: Mapping[str, Any] | None) -> Mapping[str, float] | None:
    if not fields:
        return None
    return {name: _number(fields, name) for name in DEFAULTS if fields.get(name) is not None}


def _count(fields: Mapping[str, Any], name: str) -> int:
    return int(_number(fields, name))


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= MAX_NUMBER:
        raise ValueError(f"{name} is {value!r}")
    return value
