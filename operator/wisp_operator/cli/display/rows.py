"""Rows of a gateway's ``/state``, and each row in words, for ``get``, ``up`` and ``chat``.

Pure: JSON in, text out; colours and columns are :mod:`.table`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BAR_CELLS = 12
PHASE_LABELS = {
    "schedule": "scheduling",
    "import": "starting the runtime",
    "pull": "fetching weights",
    "weights": "loading weights",
    "kernels": "preparing kernels",
    "firstToken": "warming up",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One model in its gateway's state; fields as in docs/contracts.md, *the gateway's /state*."""

    namespace: str
    name: str
    served_name: str
    state: str
    reason: str
    message: str
    phase: str | None
    progress: float | None
    waiting: int
    running: int
    idle_s: float | None
    tokens_per_second: float
    cold_start_s: float | None
    url: str
    ready: int
    pods: int

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def read(state: Mapping[str, Any]) -> list[Row]:
    """The rows of a gateway's ``/state`` in its order: on a machine, that of the manifests."""
    return [_row(model) for model in state.get("models", ())]


def detail(row: Row, idle_after_s: float | None = None) -> str:
    """Describe in a few words what a model does now.

    Args:
        idle_after_s: idle seconds after which it goes to zero, if known.
    """
    if row.state == "Asleep":
        return (
            f"last start took {row.cold_start_s:.1f} s" if row.cold_start_s else "wakes on the first request"
        )
    if row.state == "Waking":
        return waking(row)
    if row.state == "Ready":
        return _ready(row, idle_after_s)
    return row.message or row.reason


def waking(row: Row) -> str:
    """Progress of a waking model: ``loading weights ━━━━━───── 40 %``."""
    words = PHASE_LABELS.get(row.phase or "", "starting")
    return f"{words} {bar(row.progress)} {row.progress:.0%}" if row.progress is not None else words


def bar(share: float, cells: int = BAR_CELLS) -> str:
    """A bar of ``cells`` characters, filled by ``share`` (0 to 1)."""
    filled = round(min(1.0, max(0.0, share)) * cells)
    return "━" * filled + "─" * (cells - filled)


def format_duration(seconds: float) -> str:
    """Format a duration: ``4 s``, ``9:41``, ``2 h 05``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600} h {whole % 3600 // 60:02d}"


def _ready(row: Row, idle_after_s: float | None) -> str:
    pods = f"{row.ready} pods, " if row.ready > 1 else ""
    if row.running or row.waiting or idle_after_s is None or row.idle_s is None:
        return f"{pods}serving" if row.running else f"{pods}ready".strip()
    return f"{pods}sleeps in {format_duration(max(0.0, idle_after_s - row.idle_s))}"


def _row(model: Mapping[str, Any]) -> Row:
    endpoints = [endpoint for endpoint in model.get("endpoints", ()) if not endpoint.get("draining")]
    return Row(
        namespace=str(model["namespace"]),
        name=str(model["name"]),
        served_name=str(model.get("servedName", model["name"])),
        state=str(model["state"]),
        reason=str(model.get("reason") or ""),
        message=str(model.get("message") or ""),
        phase=model.get("phase"),
        progress=model.get("progress"),
        waiting=int(model.get("waiting", 0)),
        running=int(model.get("running", 0)),
        idle_s=model.get("idleSeconds"),
        tokens_per_second=float(model.get("tokensPerSecond", 0.0)),
        cold_start_s=model.get("lastColdStartSeconds"),
        url=str(model.get("url", "")),
        ready=sum(bool(endpoint.get("ready")) for endpoint in endpoints),
        pods=len(endpoints),
    )
