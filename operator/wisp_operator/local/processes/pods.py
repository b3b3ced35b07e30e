"""A local pod: a process that is probed, restarted with back-off when it ends, and drained before it stops.

What kubelet does for a container. How many pods there should be is :mod:`.cluster`'s business, and what
their states mean for a model is ``status``'s.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from wisp_operator.core import exit_reasons
from wisp_operator.core.observation import Failure
from wisp_operator.core.runtime_client import Surface
from wisp_operator.local import config
from wisp_operator.local.machine import ports
from wisp_operator.local.pod_template import LOOPBACK, Device, NotLocal, Template
from wisp_operator.local.processes import backoff
from wisp_operator.local.processes.health import Health
from wisp_operator.local.processes.process import Process

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
        state, restarts, last_failure: as they stand now; ``failures`` counts the ends that nobody asked for.
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
        self.failures = 0
        self.ready_since: float | None = None
        self.last_failure: Failure | None = None
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
        self.last_failure = Failure("InternalError", f"{task.exception()!r}; see the log", time.time(), 1)
        self.failures += 1
        self._move(PodState.BACKING_OFF)

    async def _run(self) -> None:
        crashes = 0
        while True:
            self._move(PodState.STARTING)
            started = time.monotonic()
            failure = await self._live(started)
            now = time.monotonic()
            ready_since = self.life.ready_since if self.life else None
            self.life, self._process = None, None
            if self.is_draining:
                return
            self.last_failure = failure
            self.failures += 1
            crashes = backoff.crashes_in_a_row(crashes, now - ready_since if ready_since else 0.0)
            delay_s = backoff.delay_s(crashes, ready_since is not None)
            if delay_s:
                self._move(PodState.BACKING_OFF)
                await asyncio.sleep(delay_s)
            self.restarts += 1
            self._changed()

    async def _live(self, started: float) -> Failure:
        """Start the process and watch it to its end; how it ended."""
        for folder in (self._home, *self.template.scratch_folders(self._home)):
            folder.mkdir(parents=True, exist_ok=True)
        self._termination_log.unlink(missing_ok=True)
        port = ports.free_port()
        try:
            command = self.template.argv(port, self._home, self._termination_log, self._device)
            environment = config.inherited_environment() | config.kernels_environment()
            environment |= self.template.variables(self._home, self._termination_log)
            self._process = await Process.start(installed(command), environment, self.log)
        except (NotLocal, OSError) as error:
            return Failure("ContainerRefused", str(error), time.time(), 127)
        self.life = Life(Health(self.template, started), port, started)
        exit_code = await self._watch(self._process, self.life)
        return self._ending(exit_code, self.life.health)

    async def _watch(self, process: Process, life: Life) -> int:
        """Probe the process until it ends, or must be ended; its exit code."""
        while True:
            poll_s = RUNNING_POLL_S if life.health.is_ready else STARTING_POLL_S
            with suppress(TimeoutError):
                return await asyncio.wait_for(process.wait(), poll_s)
            await self._probe(life)
            if life.health.failed:
                return await process.stop(self.template.grace_s)
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

    def _ending(self, exit_code: int, health: Health) -> Failure:
        """How the process ended, by its termination log, else by what we ended it for, else by its output."""
        left = ""
        with suppress(OSError):
            left = self._termination_log.read_text(errors="replace").strip()
        startup = self.template.startup if health.failed and not health.is_started else None
        return exit_reasons.failure_of(
            exit_code,
            left or last_words(self.log),
            time.time(),
            deadline_s=startup.patience_s if startup else None,
            why=health.failed or "",
        )


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
            f"{command[0]} is not installed on this machine. "
            "Install it with: pip install -e '.[runtime]' in a clone"
        )
    return [path, *command[1:]]
