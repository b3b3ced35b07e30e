"""One operating-system process of a local pod: started in a session of its own, and surely ended.

Models and probes are the concern of :mod:`.pods`. Every process runs under :mod:`.subreaper`, so
that nothing of it survives this program, however either of them ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

HURRY_PERIOD_S = 0.2
SUBREAPER = Path(__file__).with_name("subreaper.py")


class Process:
    """A running command; its output goes to a log file."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self._ended = asyncio.ensure_future(self._reap())

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Process:
        """Start ``command`` in a session of its own.

        Must be called from the thread whose end should end the process (the main one).

        Raises:
            OSError: the log cannot be written, or no process can be made.
        """
        with log.open("ab") as output:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(SUBREAPER), str(os.getpid()), *command),
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(child)

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, 128 + the signal that ended it, or None while it runs."""
        return self._ended.result() if self._ended.done() and not self._ended.cancelled() else None

    async def wait(self) -> int:
        """Wait for the end; the exit code as in :attr:`exit_code`."""
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float) -> int:
        """Send SIGTERM, kill after ``grace_s`` seconds; return the exit code."""
        if self.exit_code is None:
            self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            return await asyncio.wait_for(self.wait(), grace_s)
        return await self.kill()

    async def hurry(self, grace_s: float) -> int:
        """Send SIGTERM again and again, kill after ``grace_s`` seconds; return the exit code.

        One signal makes a program drain, a second ends it at once; of two that a busy program has not seen
        yet, one is lost.
        """
        deadline = time.monotonic() + grace_s
        while self.exit_code is None and time.monotonic() < deadline:
            self._signal(signal.SIGTERM)
            with suppress(TimeoutError):
                return await asyncio.wait_for(self.wait(), HURRY_PERIOD_S)
        return await self.kill()

    async def kill(self) -> int:
        """End the command and its descendants at once; the exit code."""
        if self.exit_code is None:
            self._signal(signal.SIGHUP)  # the subreaper kills the whole tree, then exits
        return await self.wait()

    def _signal(self, number: int) -> None:
        """Send a signal; Popen's own way may reap the child, and asyncio lose its exit code."""
        with suppress(ProcessLookupError):
            os.kill(self._child.pid, number)

    async def _reap(self) -> int:
        code = await self._child.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)  # processes that a killed subreaper could not end
        return code if code >= 0 else 128 - code
