"""End the engine when its device does not respond: a wait without end would leave every client waiting.

A kernel that never ends reports no error, and nothing in this process can break off a wait for it. So a
thread checks how long the current wait takes, and after a timeout has the process report the reason and end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wisp_runtime.engine.execution.runner import LaunchedStep, Runner
from wisp_runtime.engine.execution.sampler import complete_masks, has_pending_counts
from wisp_runtime.engine.scheduling.plan import Plan, SampledToken

TIMEOUT_S = 60.0  # a prefill of 8,192 tokens takes a second or two, whatever the model
_CHECKS = 20  # within a timeout


class Watchdog:
    """A thread that calls ``on_timeout`` once, with the timeout in seconds, if a watched wait takes
    longer."""

    def __init__(self, on_timeout: Callable[[float], None], timeout_s: float = TIMEOUT_S) -> None:
        self._on_timeout, self._timeout_s = on_timeout, timeout_s
        self._since_s: float | None = None
        threading.Thread(target=self._watch, name="engine-watchdog", daemon=True).start()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch a wait inside the block; not for several threads."""
        self._since_s = time.monotonic()
        try:
            yield
        finally:
            self._since_s = None

    def _watch(self) -> None:
        while True:
            time.sleep(self._timeout_s / _CHECKS)
            since_s = self._since_s
            if since_s is not None and time.monotonic() - since_s > self._timeout_s:
                self._on_timeout(self._timeout_s)
                return


class WatchedRunner:
    """A runner whose launches and waits are watched; see :class:`.runner.Runner`.

    Masks of grammars are completed before each call that needs them: the host's time is not the device's.
    """

    def __init__(self, runner: Runner, watchdog: Watchdog) -> None:
        self.overlaps = runner.overlaps
        self._runner, self._watchdog = runner, watchdog

    def forward(self, plan: Plan) -> LaunchedStep:
        """Launch ``plan``; a launch waits too, for memory that an earlier step still reads."""
        if not has_pending_counts(plan):
            complete_masks(plan)
        with self._watchdog.watching():
            return _WatchedStep(self._runner.forward(plan), self._watchdog)


class _WatchedStep:
    def __init__(self, step: LaunchedStep, watchdog: Watchdog) -> None:
        self.plan = step.plan
        self._step, self._watchdog = step, watchdog

    def sample(self) -> None:
        complete_masks(self.plan)
        with self._watchdog.watching():
            self._step.sample()

    def sampled_tokens(self) -> list[SampledToken]:
        with self._watchdog.watching():
            return self._step.sampled_tokens()
