"""A local pod: a process that is probed, restarted with back-off when it ends, and drained before it stops.

The kubelet's work for a container. :mod:`.cluster` decides the number of pods, ``core.status`` what their
states mean for a model.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from wisp_operator.core import exit_reasons
from wisp_operator.core.observation import Failure
from wisp_operator.core.runtime_client import RuntimeClient
from wisp_operator.core.runtime_state import RuntimeState
from wisp_operator.local import config
from wisp_operator.local.machine import ports
from wisp_operator.local.pod_template import LOOPBACK, Device, NotLocal, Template
from wisp_operator.local.processes import backoff
from wisp_operator.local.processes.health import Health
from wisp_operator.local.processes.process import Process
from wisp_plan.distribution import install_command

log = logging.getLogger(__name__)

STARTING_POLL_S = 0.05
RUNNING_POLL_S = 1.0
LOG_TAIL_BYTES = 2048
MAX_TERMINATION_LOG_BYTES = 4096
TRIED_AGAIN = "It is tried again; free space on a full disk, and report any other error"
UNWATCHED = "It is not tried again: restart wisp up, and report this"


class PodState(StrEnum):
    """State of a pod."""

    STARTING = "Starting"
    READY = "Ready"
    UNREADY = "Unready"
    BACKING_OFF = "BackingOff"
    STOPPED = "Stopped"


@dataclass(frozen=True, slots=True)
class PodContext:
    """Context that the pods of one namespace share.

    Attributes:
        home: directory for their logs and scratch.
        client: HTTP client for probes.
        changed: callback after every change of a pod.
        device: the user's ``--device``.
        token: token that the pods ask for; empty if they ask for none.
    """

    home: Path
    client: RuntimeClient
    changed: Callable[[], None]
    device: Device = "auto"
    token: str = ""


@dataclass
class ProcessRun:
    """One run of a pod's process, from start to end.

    Attributes:
        started, became_ready: monotonic seconds; None: it has not been ready yet.
        runtime: the last ``/state`` it gave.
    """

    health: Health
    port: int
    started: float
    became_ready: float | None = None
    runtime: RuntimeState | None = None


class Pod:
    """One pod of a model on this machine.

    Attributes:
        name: unique on this machine; also the endpoint's id in the gateway's directory.
        state, restarts, last_failure: current values; ``failures`` counts the unexpected exits.
        ready_since: time at which it first became ready, Unix seconds.
        is_draining: true while it finishes what it runs and accepts nothing new.
        created: time of creation, Unix seconds.
    """

    def __init__(self, name: str, template: Template, context: PodContext) -> None:
        self.name = name
        self.template = template
        self.created = time.time()
        self.state = PodState.STARTING
        self.restarts = 0
        self.failures = 0
        self.ready_since: float | None = None
        self.last_failure: Failure | None = None
        self.is_draining = False
        self.process_run: ProcessRun | None = None
        self.log = context.home / f"{name}.log"
        self._home = context.home / name
        self._client = context.client
        self._device, self._token = context.device, context.token
        self._changed = context.changed
        self._process: Process | None = None
        self._task = asyncio.create_task(self._run(), name=f"pod {name}")
        self._task.add_done_callback(self._on_task_done)

    @property
    def address(self) -> str | None:
        """``host:port`` of the running process."""
        return f"{LOOPBACK}:{self.process_run.port}" if self.process_run else None

    @property
    def runtime(self) -> RuntimeState | None:
        """The last ``/state`` of the running process; None until it gave one."""
        return self.process_run.runtime if self.process_run else None

    async def stop(self, grace_s: float | None = None) -> None:
        """Drain and end the pod; it is not restarted. Done when no process of it remains."""
        self.is_draining = True
        self._changed()
        if self._process is not None:
            await self._process.stop(self.template.grace_s if grace_s is None else grace_s)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._process is not None:  # one that started while we waited
            await self._process.kill()
        self._set_state(PodState.STOPPED)

    def _set_state(self, state: PodState) -> None:
        if state != self.state:
            self.state = state
            self._changed()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Report an error of the pod's task as a failure of the pod, since nothing awaits the task."""
        if task.cancelled() or task.exception() is None:
            return
        log.error("pod %s is no longer watched", self.name, exc_info=task.exception())
        self.last_failure = _internal_error(task.exception(), UNWATCHED)
        self.failures += 1
        self._set_state(PodState.BACKING_OFF)

    async def _run(self) -> None:
        crashes = 0
        while True:
            self._set_state(PodState.STARTING)
            started = time.monotonic()
            failure = await self._run_guarded(started)
            now = time.monotonic()
            became_ready = self.process_run.became_ready if self.process_run else None
            self.process_run, self._process = None, None
            if self.is_draining:
                return
            self.last_failure = failure
            self.failures += 1
            crashes = backoff.crashes_in_a_row(crashes, now - became_ready if became_ready else 0.0)
            delay_s = backoff.delay_s(crashes, became_ready is not None)
            if delay_s:
                self._set_state(PodState.BACKING_OFF)
                await asyncio.sleep(delay_s)
            self.restarts += 1
            self._changed()

    async def _run_guarded(self, started: float) -> Failure:
        """Run once; an error of ours, or a full disk, is a failure like any other and tried again."""
        try:
            return await self._run_once(started)
        except Exception as error:
            log.exception("pod %s could not be run or watched; it is tried again", self.name)
            if self._process is not None:
                await self._process.kill()
            return _internal_error(error, TRIED_AGAIN)

    async def _run_once(self, started: float) -> Failure:
        """Start the process and watch it to its end; return the failure."""
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
        self.process_run = ProcessRun(Health(self.template, started), port, started)
        exit_code = await self._watch(self._process, self.process_run)
        return self._exit_failure(exit_code, self.process_run.health)

    async def _watch(self, process: Process, process_run: ProcessRun) -> int:
        """Probe the process until it ends, or must be ended; its exit code."""
        while True:
            poll_s = RUNNING_POLL_S if process_run.health.is_ready else STARTING_POLL_S
            with suppress(TimeoutError):
                return await asyncio.wait_for(process.wait(), poll_s)
            await self._probe(process_run)
            if process_run.health.failed:
                return await process.stop(self.template.grace_s)
            self._update_state(process_run)

    async def _probe(self, process_run: ProcessRun) -> None:
        due = process_run.health.due()
        address = f"{LOOPBACK}:{process_run.port}"
        answers = await asyncio.gather(
            self._client.state(address, self._token),
            *(self._client.probe_succeeds(address, probe.path, probe.timeout_s) for probe in due.values()),
        )
        now = time.monotonic()
        for kind, succeeded in zip(due, answers[1:], strict=True):
            process_run.health.record(kind, bool(succeeded), now)
        if isinstance(answers[0], RuntimeState) and answers[0] != process_run.runtime:
            process_run.runtime = answers[0]
            self._changed()

    def _update_state(self, process_run: ProcessRun) -> None:
        if process_run.health.is_ready:
            process_run.became_ready = process_run.became_ready or time.monotonic()
            self.ready_since = self.ready_since or time.time()
            self._set_state(PodState.READY)
        elif process_run.became_ready is not None:
            self._set_state(PodState.UNREADY)

    @property
    def _termination_log(self) -> Path:
        return self._home / "termination-log"

    def _exit_failure(self, exit_code: int, health: Health) -> Failure:
        """Name the exit by the termination log, else by the probe that failed, else by the output."""
        output = ""
        with suppress(OSError):
            output = head(self._termination_log)
        startup = self.template.startup if health.failed and not health.is_started else None
        return exit_reasons.failure_of(
            exit_code,
            output or log_tail(self.log),
            time.time(),
            deadline_s=startup.failure_window_s if startup else None,
            why=health.failed or "",
        )


def _internal_error(error: BaseException | None, remedy: str) -> Failure:
    return Failure(
        "InternalError",
        f"wisp up could not run or watch the process: {error!r}. {remedy} with what wisp up logged.",
        time.time(),
        1,
    )


def log_tail(log: Path) -> str:
    """Read the end of a log, as long as a termination message may be."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return file.read(LOG_TAIL_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def head(path: Path) -> str:
    """Read as much of a termination log as a kubelet does; of a regular file alone, which never waits."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(MAX_TERMINATION_LOG_BYTES).decode(errors="replace").strip()


def installed(command: list[str]) -> list[str]:
    """``command`` with its program's path.

    Raises:
        NotLocal: the program is not installed here.
    """
    path = config.program(command[0])
    if path is None:
        raise NotLocal(
            f"{command[0]} is not installed on this machine. Install it with: {install_command('runtime')}"
        )
    return [path, *command[1:]]
