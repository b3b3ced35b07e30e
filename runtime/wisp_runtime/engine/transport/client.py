"""The server's half of the engine: start its process, submit requests, follow their tokens.

Runs in the server's event loop and computes nothing. The other half is :mod:`.process`; what goes
between them is :mod:`.messages`, framed by :mod:`.wire`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator
from typing import Protocol

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.transport.messages import (
    Abort,
    Fatal,
    FromEngine,
    Load,
    Phase,
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
_PIECE_BYTES = 1 << 16


class Engine(Protocol):
    """What the server needs of an engine; :class:`EngineClient` is the real one.

    Attributes:
        ready: set once a real step has given a token; ``info`` is there from then on.
        info: what the engine can do, or None while it starts.
        failed: resolves, with the reason, when the engine has ended other than by ``shutdown``.
        phases: the start-up phases so far, in order, the latest news of each.
        load: how busy it is, as of its last step, or as it began.
    """

    ready: asyncio.Event
    failed: asyncio.Future[Fatal]

    @property
    def info(self) -> Ready | None: ...
    @property
    def phases(self) -> tuple[Phase, ...]: ...
    @property
    def load(self) -> Load: ...

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
        self._phases: dict[str, Phase] = {}
        self._load = Load()
        self._queues: dict[str, asyncio.Queue[TokenEvent | Fatal]] = {}
        self._is_stopping = False
        self._fatal: Fatal | None = None
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: ServeConfig, *, entry: str = ENTRY) -> EngineClient:
        """Start the engine's process and return at once; ``ready`` or ``failed`` tells how it went.

        Args:
            config: the settings, sent to the engine as its first message.
            entry: the module that runs as the engine.
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
        client._following = asyncio.create_task(client._follow(reader), name="engine-client")
        return client

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    @property
    def info(self) -> Ready | None:
        """What the engine can do, or None while it starts."""
        return self._info

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The start-up phases so far, in order, the latest news of each."""
        return tuple(self._phases.values())

    @property
    def load(self) -> Load:
        """How busy the engine is, as of its last step."""
        return self._load

    async def submit(self, request: Submit) -> AsyncGenerator[TokenEvent, None]:
        """Follow ``request`` to its end; see :meth:`Engine.submit`.

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

        An engine that is still starting hears nothing and has nothing to lose: it is killed at once.
        """
        self._is_stopping = True
        self._send(Shutdown())
        await self._gone(grace_s if self.ready.is_set() else 0.0)
        if self._following is not None:
            await self._following

    async def _gone(self, grace_s: float) -> int:
        """Wait for the process to end, kill it after ``grace_s`` seconds; return its status."""
        try:
            return await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            return await self._process.wait()

    def _send(self, message: ToEngine | ServeConfig) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        """Take in what the engine says until it says no more, then settle every account.

        Whoever has told of its end gets a grace to leave: a process whose GPU hangs may never manage.
        """
        decoder, fatal = Decoder(), None
        with contextlib.suppress(ConnectionError):
            while fatal is None and (data := await reader.read(_PIECE_BYTES)):
                for message in decoder.feed(data):
                    fatal = message if isinstance(message, Fatal) else fatal
                    self._take(message)
        self._writer.close()
        status = await self._gone(_EXIT_GRACE_S)
        self._fatal = fatal or Fatal("EngineDied", _obituary(status))
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
            case Phase(name=name):
                self._phases[name] = message
            case Ready():
                self._info, self._load = message, message.load
                self.ready.set()
            case Fatal():
                pass  # the process ends now; _follow settles when it has


def _died(fatal: Fatal) -> EngineDied:
    return EngineDied(fatal.message, because=fatal.reason, details=fatal.details)


def _obituary(status: int) -> str:
    how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
    return f"the engine's process {how} without saying why; see its log, and the kernel's for signal 9"
