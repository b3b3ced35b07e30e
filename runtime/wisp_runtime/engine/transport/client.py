"""The server's half of the engine: start its process, submit requests, receive their tokens.

Runs in the server's event loop and computes nothing. The other half is :mod:`wisp_runtime.engine.process`;
between them go :mod:`.messages`, framed by :mod:`.wire`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Protocol

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.transport.messages import (
    Abort,
    ExpertReport,
    Fatal,
    FromEngine,
    Load,
    Phase,
    ReadExperts,
    Ready,
    Shutdown,
    StepOutput,
    Submit,
    ToEngine,
    TokenEvent,
)
from wisp_runtime.engine.transport.wire import Decoder, encode
from wisp_runtime.errors import EngineDied

ENTRY = "wisp_runtime.engine.process"
_EXIT_GRACE_S = 5.0
_READ_BYTES = 1 << 16
_REPORT_S = 0.25


class Engine(Protocol):
    """An engine as the server sees it; :class:`EngineClient` is the real one.

    Attributes:
        ready: event that is set once a real step has given a token; ``info`` is there from then on.
        info: limits and ledger of the engine, or None while it starts.
        failed: future that resolves, with the reason, when the engine has ended other than by ``shutdown``.
        phases: start-up phases so far, in order, the latest state of each.
        load: counts as of its last step, or as it began.
        experts: last report of the experts' load; None before :meth:`read_experts`, and where there are none.
    """

    ready: asyncio.Event
    failed: asyncio.Future[Fatal]

    @property
    def info(self) -> Ready | None: ...
    @property
    def phases(self) -> tuple[Phase, ...]: ...
    @property
    def load(self) -> Load: ...
    @property
    def experts(self) -> ExpertReport | None: ...

    async def read_experts(self) -> None:
        """Ask for a new report of the experts' load, and wait for it, but not for long."""
        ...

    def submit(self, request: Submit) -> AsyncGenerator[TokenEvent, None]:
        """Follow ``request`` to its end: the last event has ``finish`` set.

        The request is sent at the first iteration. Closing the generator early (also by cancelling
        the task that iterates) aborts the request.

        Raises:
            EngineDied: the engine ended before the request did.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request; its iterator gets a last event with ``finish="abort"``. Unknown ids are ignored."""
        ...

    async def shutdown(self) -> None:
        """Abort what runs and wait until the process is gone."""
        ...


class EngineClient:
    """An engine in a process of its own. Make one with :meth:`start`."""

    def __init__(self, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter) -> None:
        self.ready = asyncio.Event()
        self.failed: asyncio.Future[Fatal] = asyncio.get_running_loop().create_future()
        self._process = process
        self._writer = writer
        self._info: Ready | None = None
        self._phases: dict[str, tuple[Phase, float]] = {}  # each with the time of its first message
        self._load = Load()
        self._experts: ExpertReport | None = None
        self._wants_experts: asyncio.Future[None] | None = None
        self._queues: dict[str, asyncio.Queue[TokenEvent | Fatal]] = {}
        self._is_stopping = False
        self._fatal: Fatal | None = None
        self._outgoing: list[ToEngine | ServeConfig] = []
        self._has_outgoing = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: ServeConfig, *, entry: str = ENTRY) -> EngineClient:
        """Start the engine's process and return at once; ``ready`` or ``failed`` is set later.

        Args:
            config: settings, sent to the engine as its first message.
            entry: module that runs as the engine.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", entry),
                *(str(theirs.fileno()), str(os.getpid()), str(time.monotonic())),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        client = cls(process, writer)
        client._send(config)
        client._writing = asyncio.create_task(client._write_messages(), name="engine-writer")
        client._reading = asyncio.create_task(client._read_messages(reader), name="engine-client")
        return client

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    @property
    def info(self) -> Ready | None:
        """Limits and ledger of the engine, or None while it starts."""
        return self._info

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The start-up phases so far, in order; of one that runs its seconds so far."""
        now_s = time.monotonic()
        return tuple(
            phase if phase.is_done else replace(phase, seconds=now_s - began_s)
            for phase, began_s in self._phases.values()
        )

    @property
    def load(self) -> Load:
        """Counts as of the engine's last step."""
        return self._load

    @property
    def experts(self) -> ExpertReport | None:
        """Last report of the experts' load."""
        return self._experts

    async def read_experts(self) -> None:
        """Ask for a new report; in the middle of a long step, the last one has to do."""
        if self._info is None or not self._info.has_experts or self._fatal is not None:
            return
        if self._wants_experts is None:
            self._wants_experts = asyncio.get_running_loop().create_future()
            self._send(ReadExperts())
        await asyncio.wait([self._wants_experts], timeout=_REPORT_S)

    async def submit(self, request: Submit) -> AsyncGenerator[TokenEvent, None]:
        """Yield the tokens of ``request`` to its end; see :meth:`Engine.submit`.

        Raises:
            EngineDied: the engine ended before the request did.
            ValueError: a request of this id is already running.
        """
        if self._fatal is not None:
            raise _died(self._fatal)
        if request.request_id in self._queues:
            raise ValueError(f"request id {request.request_id!r} is already running; ids must be unique")
        queue = self._queues[request.request_id] = asyncio.Queue()
        is_over = False
        try:
            self._send(request)
            while not is_over:
                event = await queue.get()
                is_over = True
                if isinstance(event, Fatal):
                    raise _died(event)
                is_over = event.finish is not None
                yield event
        finally:
            del self._queues[request.request_id]
            if not is_over:
                self.abort(request.request_id)

    def abort(self, request_id: str) -> None:
        """End a request; its iterator gets a last event with ``finish="abort"``. Unknown ids are ignored."""
        self._send(Abort(request_id))
        if queue := self._queues.get(request_id):  # now: the engine may be in the middle of a long step
            queue.put_nowait(TokenEvent(request_id, None, "abort"))

    async def shutdown(self, *, grace_s: float = _EXIT_GRACE_S) -> None:
        """Abort what runs and wait until the process is gone; kill it after ``grace_s`` seconds.

        An engine that is still starting reads no messages and has nothing to lose: it is killed at once.
        """
        self._is_stopping = True
        self._send(Shutdown())
        await self._wait_for_exit(grace_s if self.ready.is_set() else 0.0)
        if self._reading is not None:
            await self._reading

    async def _wait_for_exit(self, grace_s: float) -> int:
        """Wait for the process to end, kill it after ``grace_s`` seconds; return its status."""
        try:
            return await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            return await self._process.wait()

    def _send(self, message: ToEngine | ServeConfig) -> None:
        self._outgoing.append(message)
        self._has_outgoing.set()

    async def _write_messages(self) -> None:
        """Send messages, those of one moment in one frame, and none before the engine has read the others."""
        with contextlib.suppress(ConnectionError):
            while not self._writer.is_closing():
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                messages, self._outgoing = self._outgoing, []
                self._writer.write(encode(*messages))
                await self._writer.drain()

    async def _read_messages(self, reader: asyncio.StreamReader) -> None:
        """Read the engine's messages until it ends, then end every request.

        A process that has reported its end gets a grace period to exit; with a GPU that hangs it may never
        manage.
        """
        decoder, fatal = Decoder(), None
        with contextlib.suppress(ConnectionError):
            while fatal is None and (data := await reader.read(_READ_BYTES)):
                for message in decoder.feed(data):
                    fatal = message if isinstance(message, Fatal) else fatal
                    self._take(message)
        if self._writing is not None:
            self._writing.cancel()
        self._writer.close()
        status = await self._wait_for_exit(_EXIT_GRACE_S)
        self._fatal = fatal or Fatal("EngineDied", _exit_message(status))
        for queue in self._queues.values():
            queue.put_nowait(self._fatal)
        if not self._is_stopping and not self.failed.done():
            self.failed.set_result(self._fatal)

    def _take(self, message: FromEngine) -> None:
        match message:
            case StepOutput(events=events, load=load):
                self._load = load
                for event in events:
                    if queue := self._queues.get(event.request_id):
                        queue.put_nowait(event)
            case ExpertReport():
                self._experts = message
                if self._wants_experts is not None:
                    self._wants_experts.set_result(None)
                    self._wants_experts = None
            case Phase(name=name):
                _, began_s = self._phases.get(name, (message, time.monotonic()))
                self._phases[name] = message, began_s
            case Ready():
                self._info, self._load = message, message.load
                self.ready.set()
            case Fatal():
                pass  # the process ends now; _read_messages takes care of it


def _died(fatal: Fatal) -> EngineDied:
    return EngineDied(fatal.message, because=fatal.reason, details=fatal.details)


def _exit_message(status: int) -> str:
    how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
    return f"the engine's process {how} without saying why; see its log, and the kernel's for signal 9"
