"""Readers of the engine's reports, for metrics; a rate over the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from wisp_runtime.engine.transport.messages import Load, Ready

Samples = Iterable[tuple[Mapping[str, str], float]]
_MEMORY = {
    "weights": "weightsBytes",
    "kv_cache": "kvCacheBytes",
    "states": "stateBytes",
    "snapshots": "snapshotBytes",
    "workspace": "workspaceBytes",
    "graphs": "graphsBytes",
    "context": "contextBytes",
}


class TokenRate:
    """Tokens a second over the last ``window_s`` seconds, counted in tenths of a second."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._slots: deque[tuple[int, int]] = deque()
        self._slot, self._count = 0, 0

    def add(self, now_s: float) -> None:
        """Count one token."""
        slot = int(now_s * 10)
        if slot != self._slot:
            self._close_slot(now_s)
            self._slot = slot
        self._count += 1

    def per_second(self, now_s: float) -> float:
        """Return the mean rate of the window that ends now."""
        self._close_slot(now_s)
        return sum(count for _, count in self._slots) / self._window_s

    def _close_slot(self, now_s: float) -> None:
        if self._count:
            self._slots.append((self._slot, self._count))
            self._count = 0
        while self._slots and self._slots[0][0] <= (now_s - self._window_s) * 10:
            self._slots.popleft()


def of(load: Callable[[], Load], read: Callable[[Load], float]) -> Callable[[], float]:
    """Return a reader of one number of the load."""
    return lambda: read(load())


def field(load: Callable[[], Load], name: str) -> Callable[[], float]:
    """Return a reader of one field of the load."""
    return lambda: float(getattr(load(), name))


def waiting(load: Load) -> float:
    """Return the sequences that are not admitted."""
    return load.waiting


def running(load: Load) -> float:
    """Return the sequences in the step."""
    return load.running


def kv_usage(load: Load) -> float:
    """Return the used share of KV blocks."""
    return load.kv_blocks_used / load.kv_blocks_total if load.kv_blocks_total else 0.0


def prompt_tokens(load: Load) -> float:
    """Return the prompt tokens, computed or cached."""
    return load.prompt_tokens_total + load.cached_tokens_total


def sources(load: Load) -> Samples:
    """Return the prompt tokens by source, as vLLM names it."""
    return [
        ({"source": "local_compute"}, load.prompt_tokens_total),
        ({"source": "local_cache_hit"}, load.cached_tokens_total),
    ]


def memory(info: Ready | None) -> Samples:
    """Return the bytes of each part of the memory plan; none before the engine is ready."""
    ledger = info.ledger if info is not None else {}
    return [({"part": part}, _number(ledger[key])) for part, key in _MEMORY.items() if key in ledger]


def available(info: Ready | None) -> Samples:
    """Return the bytes that the server may use; none before the engine is ready."""
    ledger = info.ledger if info is not None else {}
    return [({}, _number(ledger["availableBytes"]))] if "availableBytes" in ledger else []


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)
