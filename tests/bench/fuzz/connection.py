"""A client's connection: hostile requests are sent one after another, answers parsed in C."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import httptools
from mutations import Case

CONTINUE = 100
MID_STREAM_PARTS = 3


@dataclass(slots=True)
class Answer:
    """An answer as it came.

    Attributes:
        status: its status; 0: none came.
        headers: its headers, names in lower case.
        body: its body.
        is_complete: whether it came to its end.
        parts: parts in which the body came.
    """

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False
    parts: int = 0


class Connection(asyncio.Protocol):
    """One connection; requests go one at a time."""

    def __init__(self) -> None:
        self.is_usable = False
        self.requests = 0
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser
        self._answer = Answer()
        self._stage = "stays"
        self._done: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect to a port of this machine."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self._transport, self.is_usable = cast("asyncio.Transport", transport), True

    async def ask(self, case: Case) -> Answer:
        """Send a request; return its answer, or what came of it before its client left."""
        answer = self._answer = Answer()
        self._parser = httptools.HttpResponseParser(self)
        self._stage, self._done = case.stage, asyncio.get_running_loop().create_future()
        self.requests += 1
        match case.stage:
            case "before the body":
                self._transport.write(case.head)
            case "mid-body":
                self._transport.write(case.head + case.body[: len(case.body) // 2])
            case _:
                self._transport.write(case.head + case.body)
        if case.stage in ("before the body", "mid-body", "after sending"):
            await asyncio.sleep(0)
            self.leave(is_abrupt=self.requests % 2 == 0)
            return answer
        await self._done
        if case.closes or case.stage != "stays":
            self.leave(is_abrupt=self.requests % 2 == 0)
        return answer

    def leave(self, *, is_abrupt: bool = False) -> None:
        """Close the connection, with a reset if it is abrupt."""
        self.is_usable = False
        if is_abrupt:
            self._transport.abort()
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end()
        except httptools.HttpParserError:
            self.leave()
            self._end()
        if self._stage == "first byte":
            self._end()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header."""
        self._answer.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        """Note a part of the body."""
        self._answer.body += body
        self._answer.parts += 1
        if self._stage == "mid-stream" and self._answer.parts >= MID_STREAM_PARTS:
            self._end()

    def on_message_complete(self) -> None:
        """Note that the answer is complete, unless it only asks for the body."""
        status = self._parser.get_status_code()
        if status == CONTINUE or self._answer.is_complete:
            return
        self._answer.status, self._answer.is_complete = status, True
        self.is_usable = self.is_usable and self._parser.should_keep_alive()
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up the answer."""
        self.is_usable = False
        self._end()

    def _end(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
