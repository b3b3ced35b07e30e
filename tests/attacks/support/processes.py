"""Processes under attack: started, measured, ended."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = (ROOT / "operator", ROOT / "runtime")


def until(claim: Callable[[], object], timeout_s: float = 60.0, message: str = "") -> None:
    """Wait until a claim is true."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, message or f"not within {timeout_s:g} s"
        time.sleep(0.05)


def status_of(url: str, timeout_s: float = 5.0) -> int:
    """Return the status of a GET; 0 where there was no answer."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except OSError:
        return 0


class Process:
    """A process of the test's own.

    Args:
        name: name in messages.
        command: program and arguments.
        log: file of its output.
        environment: variables beside the test's own.
    """

    def __init__(
        self, name: str, command: list[str], log: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.name, self.log = name, log
        path = os.pathsep.join(str(folder) for folder in FOLDERS)
        variables = {**os.environ, "PYTHONPATH": path, **(environment or {})}
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env=variables)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    @property
    def peak_mib(self) -> float:
        """Most memory that the process and its children held, in MiB; 0 once it has ended."""
        return sum(_status_mib(pid, "VmHWM") for pid in self.family())

    @property
    def rss_mib(self) -> float:
        """Memory that the process and its children hold, in MiB."""
        return sum(_status_mib(pid, "VmRSS") for pid in self.family())

    def forget_peak(self) -> None:
        """Let :attr:`peak_mib` begin anew."""
        for pid in self.family():
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def family(self) -> list[int]:
        """Return the process and all its descendants."""
        members = [self.pid]
        for pid in members:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                members += [int(child) for child in _read(children).split()]
        return members

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def wait(self, timeout_s: float) -> int:
        """Return the exit code; raises ``subprocess.TimeoutExpired``."""
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """End it, and what it started."""
        family = self.family()
        self._process.kill()
        self._process.wait()
        for pid in family[1:]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue

    def output(self, last: int = 4000) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-last:]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _status_mib(pid: int, name: str) -> float:
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return 0.0
