"""Work queue of models: each is reconciled by one worker at a time, and again if it changed meanwhile.

Namespaces take turns, and one has at most half of the workers: a tenant with thousands of models, or with
slow ones, delays its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from wisp_operator.cluster.metrics import Metrics
from wisp_operator.errors import WispError

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.5
MAX_RETRY_S = 60.0
MAX_ASKED_RETRY_S = 5.0  # interval of a failing model that requests wait for
MAX_CHANGED_RETRY_S = 1.0  # and of one whose objects change: that may be what it waits for, or its own doing
MAX_RECONCILE_S = 60.0  # half of the time after which the watchdog ends this process
NAMESPACE_SHARE = 0.5  # part of the workers

Reconcile = Callable[[str], Awaitable[float | None]]


@dataclass
class _Timer:
    due: float
    handle: asyncio.TimerHandle


class _Turns:
    """Ready keys, taken from one namespace after the other."""

    def __init__(self) -> None:
        self._keys: dict[str, deque[str]] = {}  # in the order of the namespaces' turns
        self._taken: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def put(self, key: str) -> None:
        self._keys.setdefault(_namespace_of(key), deque()).append(key)
        self._changed.set()

    async def take(self, max_of_namespace: int) -> str:
        """Wait for a key of a namespace of which fewer than ``max_of_namespace`` are processed."""
        while True:
            free = (name for name in self._keys if self._taken[name] < max_of_namespace)
            if (namespace := next(free, None)) is not None:
                return self._pop(namespace)
            self._changed.clear()
            await self._changed.wait()

    def give_back(self, key: str) -> None:
        """Count a key as processed."""
        namespace = _namespace_of(key)
        self._taken[namespace] -= 1
        if not self._taken[namespace]:
            del self._taken[namespace]
        self._changed.set()

    def _pop(self, namespace: str) -> str:
        keys = self._keys.pop(namespace)
        key = keys.popleft()
        if keys:
            self._keys[namespace] = keys  # behind the others
        self._taken[namespace] += 1
        return key


class WorkQueue:
    """Keys that wait, keys being processed, and keys that are due later."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._ready = _Turns()
        self._waiting: set[str] = set()
        self._processing: dict[str, float] = {}
        self._dirty: set[str] = set()
        self._timers: dict[str, _Timer] = {}
        self._failures: dict[str, int] = {}
        self._failed_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: str) -> None:
        """Enqueue a model that changed for the next free worker; one that fails, after its back-off."""
        self._add_no_sooner(key, MAX_CHANGED_RETRY_S)

    def add_asked(self, key: str) -> None:
        """Enqueue a model that requests wait for; one that fails, after its back-off."""
        self._add_no_sooner(key, MAX_ASKED_RETRY_S)

    def _add_no_sooner(self, key: str, max_retry_s: float) -> None:
        retry_s = min(max_retry_s, _retry_s(self._failures[key])) if key in self._failures else 0.0
        wait_s = self._failed_at.get(key, 0.0) + retry_s - time.monotonic()
        if retry_s and wait_s > 0:
            self.add_after(key, wait_s)
        else:
            self._add(key)

    def _add(self, key: str) -> None:
        if key in self._processing:
            self._dirty.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put(key)

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
        share = max(1, int(workers * NAMESPACE_SHARE))
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work(reconcile, share))

    def _fire(self, key: str) -> None:
        self._timers.pop(key, None)
        self._add(key)

    async def _work(self, reconcile: Reconcile, share: int) -> None:
        while True:
            key = await self._ready.take(share)
            self._waiting.discard(key)
            self._processing[key] = time.monotonic()
            try:
                seconds = await self._reconcile(reconcile, key)
            finally:
                self._metrics.observe(time.monotonic() - self._processing.pop(key))
                self._ready.give_back(key)
            if key in self._dirty:
                self._dirty.discard(key)
                self.add(key)
            elif seconds is not None:
                self.add_after(key, seconds)

    async def _reconcile(self, reconcile: Reconcile, key: str) -> float | None:
        try:
            async with asyncio.timeout(MAX_RECONCILE_S) as limit:
                seconds = await reconcile(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self._failed_at[key] = time.monotonic()
            self._metrics.count("reconciles", outcome="error")
            retry_s = _retry_s(failures)
            # One line for what the cluster answered, the whole trace for a defect of ours.
            is_ours = not (isinstance(error, WispError) or limit.expired())
            why = f"its reconcile took more than {MAX_RECONCILE_S:g} s" if limit.expired() else error
            log.error("%s: %s; again within %.1f s", key, why, retry_s, exc_info=is_ours)
            return retry_s
        self._failures.pop(key, None)
        self._failed_at.pop(key, None)
        self._metrics.count("reconciles", outcome="ok")
        return seconds


def _retry_s(failures: int) -> float:
    return min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 10))


def _namespace_of(key: str) -> str:
    return key.partition("/")[0]
