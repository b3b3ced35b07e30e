"""Phases of a start: each is reported as it begins, moves bytes, and has succeeded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wisp_runtime.engine.transport.messages import Phase

Report = Callable[[Phase], None]
_REPORT_EVERY_S = 0.1


class PhaseProgress:
    """Progress of a start-up phase: ``progress(bytes, total_bytes)``.

    Attributes:
        note: words about the phase's result, for the log.
    """

    def __init__(self, name: str, report: Report) -> None:
        self._name, self._report, self.note = name, report, ""
        self._began_s = self._reported_s = time.monotonic()
        self._moved = (0, 0)
        report(Phase(name))

    def __call__(self, done: int, total: int) -> None:
        """Report the bytes that have moved, not too often."""
        self._moved, now_s = (done, total), time.monotonic()
        if now_s - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = now_s
            self._report(Phase(self._name, now_s - self._began_s, False, *self._moved))

    def end(self) -> None:
        """Report that the phase has succeeded."""
        self._report(Phase(self._name, time.monotonic() - self._began_s, True, *self._moved, self.note))


@contextmanager
def phase(name: str, report: Report) -> Iterator[PhaseProgress]:
    """Report a phase as it begins and has succeeded."""
    progress = PhaseProgress(name, report)
    yield progress
    progress.end()
