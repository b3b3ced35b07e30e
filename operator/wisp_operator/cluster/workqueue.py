"""Work queue of models: each is reconciled by one worker at a time, and again if it changed meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from wisp_operator.cluster.metrics import Metrics
from wisp_operator.errors import WispError

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.5
MAX_RETRY_S = 60.0

Reconcile = Callable[[str], Awaitable[float | None]]


@dataclass
class _Timer:
    due: float
    handle: asyncio.TimerHandle


class WorkQueue:
    """Keys that wait, keys being processed, and keys that are due later."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()
        self._processing: dict[str, float] = {}
        self._dirty: set[str] = set()
        self._timers: dict[str, _Timer] = {}
        self._failures: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: str) -> None:
        """Enqueue ``key`` for the next free worker."""
        if key in self._processing:
            self._dirty.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Enqueue ``key`` in ``seconds``, unless it is due earlier anyway."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        timer = self._timers.get(key)
        if timer is not None and timer.due <= due:
            return
        if timer is not None:
            timer.handle.cancel()
        self._timers[key] = _Timer(due, loop.call_later(seconds, self._fire, key))

    def longest_busy_s(self) -> float:
        """Duration so far of the slowest reconcile under way."""
        return max((time.monotonic() - since for since in self._processing.values()), default=0.0)

    async def run(self, reconcile: Reconcile, workers: int) -> None:
        """Reconcile keys until cancelled; one that raises is tried again with exponential backoff."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work(reconcile))

    def _fire(self, key: str) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def _work(self, reconcile: Reconcile) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._processing[key] = time.monotonic()
            try:
                seconds = await self._reconcile(reconcile, key)
            finally:
                self._metrics.observe(time.monotonic() - self._processing.pop(key))
            if key in self._dirty:
                self._dirty.discard(key)
                self.add(key)
            elif seconds is not None:
                self.add_after(key, seconds)

    async def _reconcile(self, reconcile: Reconcile, key: str) -> float | None:
        try:
            seconds = await reconcile(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self._metrics.count("reconciles", outcome="error")
            retry_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 10))
            # One line for what the cluster answered, the whole trace for a defect of ours.
            is_ours = not isinstance(error, WispError)
            log.error("%s: %s; again in %.1f s", key, error, retry_s, exc_info=is_ours)
            return retry_s
        self._failures.pop(key, None)
        self._metrics.count("reconciles", outcome="ok")
        return seconds
