"""A local pod: a process that is probed, restarted with back-off when it ends, and drained before it stops.

What kubelet does for a container. How many pods there should be is :mod:`.cluster`'s business, and what
their states mean for a model is ``status``'s.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from wisp_operator.local import backoff, config, ports
from wisp_operator.local.health import Health
from wisp_operator.local.process import Process
from wisp_operator.local.template import LOOPBACK, Device, NotLocal, Template
from wisp_operator.surface import Surface

log = logging.getLogger(__name__)

STARTING_POLL_S = 0.05
RUNNING_POLL_S = 1.0
LAST_WORDS_BYTES = 2048


class PodState(StrEnum):
    """Where a pod stands."""

    STARTING = "Starting"
    READY = "Ready"
    UNREADY = "Unready"
    BACKING_OFF = "BackingOff"
    STOPPED = "Stopped"


@dataclass(frozen=True, slots=True)
class Ending:
    """How the process of a pod last ended.

    Attributes:
        exit_code: its own, or 128 + the signal that ended it.
        reason, message: from the termination log where the process wrote one, else from its last output.
        at: Unix time, in seconds.
        raw: the termination log's text, as a container status carries it.
    """

    exit_code: int
    reason: str
    message: str
    at: float
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the pods of one namespace share.

    Attributes:
        home: directory for their logs and scratch.
        surface: for probes.
        changed: called after every change of a pod.
        device: what the user of this machine chose.
    """

    home: Path
    surface: Surface
    changed: Callable[[], None]
    device: Device = "auto"


@dataclass
class Life:
    """One run of a pod's process, from start to end."""

    health: Health
    port: int
    started: float
    ready_since: float | None = None
    runtime: dict[str, Any] = field(default_factory=dict)  # the last /state it gave


class Pod:
    """One pod of a model on this machine.

    Attributes:
        name: unique on this machine; also the endpoint's id in the gateway's directory.
        state, restarts, last_ending: as they stand now; ``endings`` counts those nobody asked for.
        ready_since: when it first became ready, Unix seconds.
        is_draining: it finishes what it runs and takes nothing new.
        created: Unix time, in seconds.
    """

    def __init__(self, name: str, template: Template, machine: Machine) -> None:
        self.name = name
        self.template = template
        self.created = time.time()
        self.state = PodState.STARTING
        self.restarts = 0
        self.endings = 0
        self.ready_since: float | None = None
        self.last_ending: Ending | None = None
        self.is_draining = False
        self.life: Life | None = None
        self.log = machine.home / f"{name}.log"
        self._home = machine.home / name
        self._surface = machine.surface
        self._device = machine.device
        self._changed = machine.changed
        self._process: Process | None = None
        self._task = asyncio.create_task(self._run(), name=f"pod {name}")
        self._task.add_done_callback(self._report)

    @property
    def address(self) -> str | None:
        """``host:port`` of the running process."""
        return f"{LOOPBACK}:{self.life.port}" if self.life else None

    @property
    def runtime(self) -> dict[str, Any]:
        """The last ``/state`` of the running process, empty until it gave one."""
        return self.life.runtime if self.life else {}

    async def stop(self, grace_s: float | None = None) -> None:
        """Drain and end the pod; it is not restarted. Done when no process of it is left."""
        self.is_draining = True
        self._changed()
        if self._process is not None:
            await self._process.stop(self.template.grace_s if grace_s is None else grace_s)
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if self._process is not None:  # one that started while we waited
            await self._process.kill()
        self._move(PodState.STOPPED)

    def _move(self, state: PodState) -> None:
        if state != self.state:
            self.state = state
            self._changed()

    def _report(self, task: asyncio.Task[None]) -> None:
        """Nobody awaits a pod, so an error of ours in one must show itself as the pod's."""
        if task.cancelled() or task.exception() is None:
            return
        log.error("pod %s is no longer watched", self.name, exc_info=task.exception())
        self.last_ending = Ending(1, "InternalError", f"{task.exception()!r}; see the log", time.time())
        self.endings += 1
        self._move(PodState.BACKING_OFF)

    async def _run(self) -> None:
        crashes = 0
        while True:
            self._move(PodState.STARTING)
            started = time.monotonic()
            exit_code, why = await self._live(started)
            now = time.monotonic()
            ready_since = self.life.ready_since if self.life else None
            self.life, self._process = None, None
            if self.is_draining:
                return
            self.last_ending = self._ending(exit_code, why)
            self.endings += 1
            crashes = backoff.crashes_in_a_row(crashes, now - ready_since if ready_since else 0.0)
            delay_s = backoff.delay_s(crashes, ready_since is not None)
            if delay_s:
                self._move(PodState.BACKING_OFF)
                await asyncio.sleep(delay_s)
            self.restarts += 1
            self._changed()

    async def _live(self, started: float) -> tuple[int, str | None]:
        """Start the process and watch it to its end; its exit code, and why we ended it if we did."""
        for folder in (self._home, *self.template.scratch_folders(self._home)):
            folder.mkdir(parents=True, exist_ok=True)
        self._termination_log.unlink(missing_ok=True)
        port = ports.free_port()
        try:
            command = self.template.argv(port, self._home, self._termination_log, self._device)
            environment = config.inherited_environment() | self.template.variables(
                self._home, self._termination_log
            )
            self._process = await Process.start(installed(command), environment, self.log)
        except (NotLocal, OSError) as error:
            return 127, str(error)
        self.life = Life(Health(self.template, started), port, started)
        return await self._watch(self._process, self.life)

    async def _watch(self, process: Process, life: Life) -> tuple[int, str | None]:
        while True:
            poll_s = RUNNING_POLL_S if life.health.is_ready else STARTING_POLL_S
            with suppress(TimeoutError):
                return await asyncio.wait_for(process.wait(), poll_s), None
            await self._probe(life)
            if life.health.failed:
                return await process.stop(self.template.grace_s), life.health.failed
            self._settle(life)

    async def _probe(self, life: Life) -> None:
        due = life.health.due()
        address = f"{LOOPBACK}:{life.port}"
        answers = await asyncio.gather(
            self._surface.state(address),
            *(self._surface.is_good(address, probe.path, probe.timeout_s) for probe in due.values()),
        )
        now = time.monotonic()
        for kind, is_good in zip(due, answers[1:], strict=True):
            life.health.record(kind, bool(is_good), now)
        if isinstance(answers[0], dict) and answers[0] != life.runtime:
            life.runtime = answers[0]
            self._changed()

    def _settle(self, life: Life) -> None:
        if life.health.is_ready:
            life.ready_since = life.ready_since or time.monotonic()
            self.ready_since = self.ready_since or time.time()
            self._move(PodState.READY)
        elif life.ready_since is not None:
            self._move(PodState.UNREADY)

    @property
    def _termination_log(self) -> Path:
        return self._home / "termination-log"

    def _ending(self, exit_code: int, why: str | None) -> Ending:
        """What the process left: its termination log, else our own reason, else its last output."""
        raw = ""
        with suppress(OSError):
            raw = self._termination_log.read_text(errors="replace").strip()
        try:
            said = json.loads(raw)
            return Ending(exit_code, str(said["reason"]), str(said["message"]), time.time(), raw)
        except (ValueError, KeyError, TypeError):
            message = why or raw or last_words(self.log) or "it left no message"
        return Ending(
            exit_code, "Unhealthy" if why else how_it_ended(exit_code), message, time.time(), message
        )


def how_it_ended(exit_code: int) -> str:
    """A reason in one word for an exit code without a termination log."""
    if exit_code in (137, 143, 139, 134):
        return {137: "Killed", 143: "Terminated", 139: "SegmentationFault", 134: "Aborted"}[exit_code]
    return "Completed" if exit_code == 0 else "Error"


def last_words(log: Path) -> str:
    """The end of a log, as far as a termination message may be long."""
    try:
        return log.read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""


def installed(command: list[str]) -> list[str]:
    """``command`` with its program's path.

    Raises:
        NotLocal: the program is not installed here.
    """
    path = config.program(command[0])
    if path is None:
        raise NotLocal(
            f"{command[0]} is not installed on this machine. Install it with: pip install 'wisp[runtime]'"
        )
    return [path, *command[1:]]
