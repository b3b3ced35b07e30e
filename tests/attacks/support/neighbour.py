"""A target under attack, and the neighbours who watch it: streams, plain answers, probes, memory.

The neighbours live in a process of their own (:mod:`watcher`), so that an attacker's Python cannot delay
them. On a machine with other work a gap has other causes, which are measured meanwhile and allowed for: the
largest gap of a control stream that comes straight from the pod, and the stretch, the wall time that a
process which computes needs for a second of CPU time (1 on an idle machine).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import Process
from wire import Connection

MAX_GAP_S = 0.25
MIB = 1024 * 1024
WATCHER = Path(__file__).with_name("watcher.py")


@dataclass(frozen=True)
class Harm:
    """One way in which a neighbour was hurt.

    Attributes:
        text: sentence with numbers.
        is_gap: True for a wait that a busy machine may have caused; the attack is then tried once more.
    """

    text: str
    is_gap: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass
class Watch:
    """The neighbours of one target.

    Args:
        streams: requests repeated for ever, each ``{"name", "url", "body", "headers", "pause_s"}``; the one
            called ``control`` goes past the target.
        answers: requests whose answer must stay what it first was: ``{"name", "url", "body", "headers"}``.
        probes: URLs that must answer 200.
    """

    streams: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    probes: list[str] = field(default_factory=list)


class Target:
    """A server under attack: its processes, its address and its neighbours.

    Args:
        processes: processes whose memory counts.
        port: port for the attacker.
        watch: neighbours of the target.
        memory_limit_mib: limit of the chart for the sum of ``processes``.
    """

    def __init__(self, processes: list[Process], port: int, watch: Watch, memory_limit_mib: int) -> None:
        self.processes, self.port, self.memory_limit_mib = processes, port, memory_limit_mib
        command = [sys.executable, str(WATCHER), json.dumps(watch.__dict__)]
        self._watcher = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._watch = watch

    def connect(self, **options: Any) -> Connection:
        """Open a raw connection to the target's port."""
        return Connection("127.0.0.1", self.port, **options)

    @property
    def url(self) -> str:
        """Base URL of the target."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_well(self) -> bool:
        """True unless an attack ended the target, or left it with half its memory taken."""
        return (
            all(process.is_alive for process in self.processes) and 2 * self.rss_mib < self.memory_limit_mib
        )

    @property
    def rss_mib(self) -> float:
        """Memory that the target holds now, in MiB."""
        return sum(process.rss_mib for process in self.processes)

    def begin_watch(self) -> None:
        """Forget the neighbours' past; wait until each of them has an answer."""
        assert all(process.is_alive for process in self.processes), "the target is not running"
        for process in self.processes:
            process.forget_peak()
        self._report("settled")

    def end_watch(self) -> list[Harm]:
        """Return every way in which a neighbour was hurt since :meth:`begin_watch`."""
        report = self._report("report")
        noise_s = report["streams"].get("control", {}).get("gap_s", 0.0)
        harm = [Harm(f"{process.name} has ended") for process in self.processes if not process.is_alive]
        limit_s = MAX_GAP_S * report["stretch"] + noise_s
        for name, stream in report["streams"].items():
            if stream["gap_s"] > limit_s and name != "control":
                text = f"{name}: a gap of {stream['gap_s']:.2f} s, over {limit_s:.2f} s on this machine now"
                harm.append(Harm(text, is_gap=True))
            harm += [Harm(f"{name}: {failure}") for failure in stream["failures"]]
        harm += [Harm(f"probe {failure}") for failure in report["probes"]["failures"]]
        harm += [Harm(f"answer {failure}") for failure in report["answers"]["failures"]]
        peak_mib = sum(process.peak_mib for process in self.processes)
        if peak_mib > self.memory_limit_mib:
            harm.append(Harm(f"memory: {peak_mib:.0f} MiB, of {self.memory_limit_mib} MiB in the chart"))
        return harm

    def close(self) -> None:
        """End the watcher and the target's processes."""
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        try:
            self._watcher.wait(5)
        except subprocess.TimeoutExpired:
            self._watcher.kill()
            self._watcher.wait()
        for process in self.processes:
            process.stop()

    def _report(self, command: str) -> dict[str, Any]:
        assert self._watcher.stdin is not None
        assert self._watcher.stdout is not None
        print(command, file=self._watcher.stdin, flush=True)
        return json.loads(self._watcher.stdout.readline())


class Reused:
    """A target kept from attack to attack, made anew once one of them has harmed it."""

    def __init__(self, make: Callable[[], Target]) -> None:
        self._make = make
        self._target: Target | None = None

    def __enter__(self) -> Reused:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the target, if there is one; :meth:`get` makes another."""
        if self._target is not None:
            self._target.close()
            self._target = None

    def get(self) -> Any:
        """Return the target, alive and with memory to spare."""
        if self._target is not None and not self._target.is_well:
            self.end()
        self._target = self._target or self._make()
        return self._target
