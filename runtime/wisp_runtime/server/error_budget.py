"""Error budget of a server: more errors than that, and its process ends to be replaced.

A process whose GPU or memory has gone bad fails every request and still looks alive; once it ends, its
supervisor starts a new one.
"""

from __future__ import annotations

import asyncio
from collections import deque

LIMIT = 5
WINDOW_S = 60.0
BURST_S = 1.0  # one broken step fails every sequence in it: that is one error


class ErrorBudget:
    """At most ``limit`` errors within ``window_s`` seconds.

    Attributes:
        is_spent: event, set for good by the first error beyond the limit.
    """

    def __init__(self, limit: int = LIMIT, window_s: float = WINDOW_S) -> None:
        self.is_spent = asyncio.Event()
        self._limit = limit
        self._window_s = window_s
        self._errors: deque[float] = deque()

    def spend(self, now_s: float) -> None:
        """Count an error at ``now_s``, unless it belongs to the burst of the one before."""
        if self._errors and now_s - self._errors[-1] < BURST_S:
            return
        self._errors.append(now_s)
        while self._errors[0] <= now_s - self._window_s:
            self._errors.popleft()
        if len(self._errors) > self._limit:
            self.is_spent.set()
