"""Which models to look at next: each at most once at a time, and once more if it changed meanwhile."""

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
LONGEST_RETRY_S = 60.0

Look = Callable[[str], Awaitable[float | None]]


@dataclass
class _Alarm:
    due: float
    handle: asyncio.TimerHandle


class WorkQueue:
    """Keys that wait, keys in work, and keys that are due later."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()
        self._busy: dict[str, float] = {}
        self._again: set[str] = set()
        self._alarms: dict[str, _Alarm] = {}
        self._failures: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: str) -> None:
        """Look at ``key`` as soon as a worker is free."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Look at ``key`` in ``seconds``, unless that is due earlier anyway."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        alarm = self._alarms.get(key)
        if alarm is not None and alarm.due <= due:
            return
        if alarm is not None:
            alarm.handle.cancel()
        self._alarms[key] = _Alarm(due, loop.call_later(seconds, self._ring, key))

    def longest_busy_s(self) -> float:
        """For how long the slowest look has been going on."""
        return max((time.monotonic() - since for since in self._busy.values()), default=0.0)

    async def run(self, look: Look, workers: int) -> None:
        """Look at keys until cancelled; a look that raises is tried again, less and less often."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work(look))

    def _ring(self, key: str) -> None:
        self._alarms.pop(key, None)
        self.add(key)

    async def _work(self, look: Look) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._busy[key] = time.monotonic()
            try:
                seconds = await self._look(look, key)
            finally:
                self._metrics.observe(time.monotonic() - self._busy.pop(key))
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            elif seconds is not None:
                self.add_after(key, seconds)

    async def _look(self, look: Look, key: str) -> float | None:
        try:
            seconds = await look(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self._metrics.count("reconciles", outcome="error")
            retry_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 10))
            # One line for what the cluster answered, the whole trace for a defect of ours.
            is_ours = not isinstance(error, WispError)
            log.error("%s: %s; again in %.1f s", key, error, retry_s, exc_info=is_ours)
            return retry_s
        self._failures.pop(key, None)
        self._metrics.count("reconciles", outcome="ok")
        return seconds
