"""One streamed request over HTTP/1.1, with the arrival times of its first and last token.

A protocol of asyncio's, with httptools' parser: some ten microseconds of CPU an event, so that a client of
thousands of tokens a second does not measure itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, cast

import httptools

_SHOWN_BYTES = 300


@dataclass(slots=True)
class Streamed:
    """Outcome of one request; times are seconds of ``time.perf_counter``.

    Attributes:
        planned_s: planned send time.
        began_s: time at which its connection was requested.
        first_s, last_s: arrival of the first and of the last event with text; None before.
        events: number of events with text.
        tokens: completion tokens by the server's ``usage``; without it, ``events``.
        error: failure; None if the stream ended as it should.
    """

    planned_s: float
    began_s: float
    first_s: float | None = None
    last_s: float | None = None
    events: int = 0
    tokens: int = 0
    error: str | None = None

    @property
    def first_token_ms(self) -> float | None:
        """Milliseconds to the first text, connecting included."""
        return None if self.first_s is None else 1e3 * (self.first_s - self.began_s)

    @property
    def time_per_token_ms(self) -> float | None:
        """Mean milliseconds of a token after the first; None for a stream of one token."""
        if self.first_s is None or self.last_s is None or self.tokens < 2:
            return None
        return 1e3 * (self.last_s - self.first_s) / (self.tokens - 1)


class StreamProtocol(asyncio.Protocol):
    """Sends one request and fills a :class:`Streamed`; ``done`` is set at the end, whatever it is."""

    def __init__(self, request: bytes, streamed: Streamed, done: asyncio.Future[None]) -> None:
        self._request, self._streamed, self._done = request, streamed, done
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._refusal = b""
        self._is_ended = False
        self._now_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Take a part of the response."""
        self._now_s = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"invalid HTTP: {error}")

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, as httptools cuts it."""
        if self._parser.get_status_code() != 200:
            self._refusal += body
            return
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._on_event(line[5:].strip())

    def on_message_complete(self) -> None:
        """End: with an error unless the stream's last event was there."""
        status = self._parser.get_status_code()
        if status != 200:
            self._fail(f"HTTP {status}: {self._refusal[:_SHOWN_BYTES].decode(errors='replace')}")
        elif not self._is_ended:
            self._fail(f"the stream ended after {self._streamed.events} events, without [DONE]")
        else:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """End with an error if the response was not complete."""
        if not self._done.done():
            self._fail(f"the connection was cut after {self._streamed.events} events: {exc or 'closed'}")

    def _on_event(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._is_ended = True
            return
        try:
            event = json.loads(payload)
            error, usage, choices = event.get("error"), event.get("usage"), event.get("choices") or ()
        except (ValueError, AttributeError):
            self._fail(f"an event is no JSON object: {payload[:_SHOWN_BYTES].decode(errors='replace')}")
            return
        if error:
            self._fail(f"an event reports an error: {str(error)[:_SHOWN_BYTES]}")
        if usage:
            self._streamed.tokens = int(usage.get("completion_tokens") or 0)
        if any(map(_has_text, choices)):
            self._on_text()

    def _on_text(self) -> None:
        streamed = self._streamed
        streamed.events += 1
        streamed.last_s = self._now_s
        if streamed.first_s is None:
            streamed.first_s = self._now_s

    def _fail(self, error: str) -> None:
        if self._streamed.error is None:
            self._streamed.error = error
        self._end()

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if not self._done.done():
            self._streamed.tokens = self._streamed.tokens or self._streamed.events
            self._done.set_result(None)


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning_content"))
