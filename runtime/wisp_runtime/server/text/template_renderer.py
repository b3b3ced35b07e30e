"""Render chat templates in processes with limits; the event loop never waits.

Two processes: a conversation that takes its template to the limits holds up one of them, and is over after
a few seconds. A process that ends, by its limits or otherwise, is replaced at once. See
:mod:`.template_process` for the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from typing import Any

from wisp_runtime.server.text.template_messages import (
    ANSWER,
    MAX_ANSWER_BYTES,
    REQUEST,
    TOO_LONG,
    TOO_MUCH_CPU,
    WALL_S,
    ChatTemplate,
    Outcome,
    TemplateFailed,
)

ENTRY = "wisp_runtime.server.text.template_process"
PROCESSES = 2
RETRY_S = 1.0

log = logging.getLogger(__name__)


class RendererBusy(Exception):
    """No process could take the messages in time; a retry may help."""


class ProcessEnded(RendererBusy):
    """The process was ended from outside."""


class TemplateRenderer:
    """Renders one model's chat template. Make one with :meth:`start`."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self._idle: asyncio.LifoQueue[_Process] = asyncio.LifoQueue()
        self._processes: set[_Process] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, template: ChatTemplate) -> TemplateRenderer:
        """Compile ``template`` in one process; the others follow in the background.

        Raises:
            TemplateFailed: it is no valid template, or cannot be compiled within the limits.
            RendererBusy: the process was ended from outside.
        """
        renderer = cls(template)
        await renderer._add_process()
        for _ in range(PROCESSES - 1):
            renderer._in_background(renderer._add_process_until_it_lives())
        return renderer

    async def render(self, messages: list[dict[str, Any]], names: Mapping[str, Any] | None = None) -> str:
        """Return the prompt for ``messages``, up to the start of the assistant's message.

        Args:
            messages: messages of the OpenAI API, contents as plain text.
            names: further names for the template (``enable_thinking``).

        Raises:
            TemplateFailed: the template refused, failed, or ran into a limit.
            RendererBusy: no process was free in time, or it was ended from outside.
        """
        request = json.dumps({"messages": messages, "names": dict(names or {})}).encode()
        try:
            return await self._ask(request)
        except ProcessEnded:  # from outside, and maybe long ago
            return await self._ask(request)

    async def close(self) -> None:
        """End the processes, and wait until they are gone."""
        for process in self._processes:
            process.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.wait() for process in self._processes))

    async def _ask(self, request: bytes) -> str:
        process = await self._idle_process()
        try:
            return await process.ask(request)
        finally:
            if not process.is_dead:
                self._idle.put_nowait(process)

    async def _idle_process(self) -> _Process:
        while not self._idle.empty():
            process = self._idle.get_nowait()
            if not process.is_dead:
                return process
        try:
            return await asyncio.wait_for(self._idle.get(), WALL_S)
        except TimeoutError as error:
            raise RendererBusy("other conversations keep the chat template busy") from error

    async def _add_process(self) -> None:
        """Start a process, have it compile the template, and replace it when it ends."""
        process = await _Process.start()
        self._processes.add(process)
        try:
            await process.ask(json.dumps(asdict(self.template)).encode())
        except BaseException:
            process.kill()
            await process.wait()
            self._processes.discard(process)
            raise
        self._idle.put_nowait(process)
        self._in_background(self._replace_when_it_ends(process))

    async def _replace_when_it_ends(self, process: _Process) -> None:
        await process.wait()
        process.kill()
        self._processes.discard(process)
        await self._add_process_until_it_lives()

    async def _add_process_until_it_lives(self) -> None:
        while True:
            try:
                return await self._add_process()
            except (TemplateFailed, RendererBusy, OSError) as error:
                log.warning("cannot start a process for the chat template: %s; it is tried again", error)
                await asyncio.sleep(RETRY_S)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="template-process")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Process:
    """One process, which answers one request at a time.

    Attributes:
        is_dead: True once it has ended or cannot be used again.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.is_dead = False
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls) -> _Process:
        """Start a process, which compiles the template of its first request."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", ENTRY, str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
            )
        return cls(process, *await asyncio.open_connection(sock=ours))

    async def ask(self, request: bytes) -> str:
        """Send ``request`` and return the text of the answer; kill the process unless it gives one."""
        has_answered = False
        try:
            async with asyncio.timeout(WALL_S):
                outcome, text = await self._exchange(request)
            has_answered = outcome is not Outcome.OUT_OF_MEMORY
        except TimeoutError as error:
            raise TemplateFailed(TOO_LONG) from error
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise await self._end() from error
        except ValueError as error:  # no outcome of ours, or no UTF-8
            raise TemplateFailed("its process sent no answer that can be read") from error
        finally:
            if not has_answered:
                self.kill()
        if outcome is not Outcome.DONE:
            raise TemplateFailed(text)
        return text

    async def _exchange(self, request: bytes) -> tuple[Outcome, str]:
        self._writer.writelines((REQUEST.pack(len(request)), request))
        await self._writer.drain()
        kind, size = ANSWER.unpack(await self._reader.readexactly(ANSWER.size))
        if size > MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of {size} bytes")
        return Outcome(kind), (await self._reader.readexactly(size)).decode("utf-8")

    async def _end(self) -> TemplateFailed | ProcessEnded:
        """Return the reason why the process has closed its end."""
        with contextlib.suppress(TimeoutError):
            status = await asyncio.wait_for(self._process.wait(), 1.0)
            if status == -signal.SIGXCPU:
                return TemplateFailed(TOO_MUCH_CPU)
            return ProcessEnded(f"the process that renders the chat template ended with status {status}")
        return ProcessEnded("the process that renders the chat template closed its connection")

    async def wait(self) -> None:
        """Wait until the process has ended."""
        await self._process.wait()

    def kill(self) -> None:
        """End the process, if it has not ended."""
        self.is_dead = True
        self._writer.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
