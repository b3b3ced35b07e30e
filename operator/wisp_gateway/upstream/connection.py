"""HTTP/1.1 connection to a pod, and its answers.

An :class:`Answer` opens with the first byte of its body (or its end), because until then the request
can still be sent elsewhere. Chunks go to the attached sink from inside the socket's read callback: no task
wakes per token. A body that stops before its announced end is a failure, and one without any announced end
is never complete.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import cast

import httptools

from wisp_gateway.errors import EndpointLost, Headers

# Bytes of an answer that are read before a sink is attached.
MAX_EARLY_BYTES = 64 * 1024
# Raw bytes of an answer's head, interim answers (1xx) included; also of framing beyond BYTES_PER_FRAMING.
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128
MAX_STATUS = 599
# A read as long as this is of a pod that sends faster than tokens come.
YIELD_BYTES = 64 * 1024
# The kernel doubles it, and charges it to the container. A read is as long, and no budget counts it.
KERNEL_BUFFER_BYTES = 32 * 1024
# Bytes of a body for each byte of chunk headers and trailers; the event of a token has over a hundred.
BYTES_PER_FRAMING = 4

Sink = Callable[[bytes], None]


class Answer:
    """A pod's answer while it arrives, to a request sent at ``sent_s`` on the monotonic clock."""

    def __init__(self, connection: Connection) -> None:
        """``feed`` takes each chunk of the body; it is the sink itself once one is attached."""
        loop = asyncio.get_running_loop()
        self.sent_s = time.monotonic()
        self.status = 0
        self.headers: Headers = []
        self.opened: asyncio.Future[None] = loop.create_future()
        self.finished: asyncio.Future[None] = loop.create_future()
        self.feed: Sink = self._keep_early
        self._connection = connection
        self._early: list[bytes] = []
        self._early_bytes = 0

    def header(self, name: bytes) -> bytes:
        """The value of a header, lower-case name; empty if it is absent."""
        return next((value for key, value in self.headers if key == name), b"")

    def attach(self, sink: Sink) -> None:
        """Pass the chunks that have arrived, and every later one as it arrives, to ``sink``."""
        self.feed = sink
        self.resume()
        for chunk in self._early:
            sink(chunk)
        self._early.clear()

    @property
    def is_request_sent(self) -> bool:
        """True unless bytes of the request wait for the pod to read; of an answer that is not complete."""
        return not self._connection.unsent_bytes

    def pause(self) -> None:
        """Stop reading from the pod: the client is slower. A complete answer's connection is another's."""
        if not self.finished.done():
            self._connection.pause()

    def resume(self) -> None:
        """Read again."""
        if not self.finished.done():
            self._connection.resume()

    def abort(self) -> None:
        """End the exchange: unless the answer is complete, the connection closes, and the pod notices."""
        if not self.finished.done():
            self._connection.close("aborted")

    def _keep_early(self, chunk: bytes) -> None:
        self._early.append(chunk)
        self._early_bytes += len(chunk)
        if self._early_bytes > MAX_EARLY_BYTES:
            self.pause()
        if not self.opened.done():
            self.opened.set_result(None)

    def end(self, failure: EndpointLost | None = None) -> None:
        """Record the end of the body, or the failure."""
        for future in (self.opened, self.finished):
            if future.done():
                continue
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)
                future.exception()  # mark as retrieved: there may be no waiter


class _Malformed(Exception):
    """Raised inside the parser's callbacks, so that it parses no further."""


class Connection(asyncio.Protocol):
    """A keep-alive connection: one exchange at a time.

    The bytes of one read reach the answer as one chunk, however many the pod made of them.

    Args:
        on_idle: callback when an answer is complete and the connection can take the next request.
    """

    def __init__(self, address: str, on_idle: Callable[[Connection], None]) -> None:
        self.address = address
        self.has_moved = False
        self.stalled_s = 0.0
        self._on_idle = on_idle
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._status = 0
        self._headers: Headers = []
        self._chunks: list[bytes] = []
        self._is_paused = self._is_yielding = False
        self._is_in_head = True
        self._raw_bytes = self._body_bytes = 0

    @property
    def is_open(self) -> bool:
        """True if it is not known to be closed."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of requests that the pod has not taken."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def request(self, head: bytes, body: bytes) -> Answer:
        """Send one request; return its answer, which fills as bytes arrive."""
        assert self._transport is not None
        assert self._answer is None
        self._answer = Answer(self)
        self.has_moved = True
        self._is_in_head = True
        self._raw_bytes = self._body_bytes = 0
        self._transport.write(head)
        self._transport.write(body)
        return self._answer

    def close(self, why: str) -> None:
        """Close at once; an exchange under way fails."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(why)

    def pause(self) -> None:
        """Stop reading."""
        self._is_paused = True
        self._apply_pause()

    def resume(self) -> None:
        """Read again."""
        self._is_paused = False
        self._apply_pause()

    def _apply_pause(self) -> None:
        transport, is_reading = self._transport, not (self._is_paused or self._is_yielding)
        if transport is None or not self.is_open or transport.is_reading() is is_reading:
            return
        if is_reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _yield(self) -> None:
        """Let other connections have their turn: the loop would read up to 32 times what it just read."""
        self._is_yielding = True
        self._apply_pause()
        asyncio.get_running_loop().call_soon(self._end_yield)

    def _end_yield(self) -> None:
        self._is_yielding = False
        self._apply_pause()

    def watch(self, passed_s: float) -> float:
        """Add ``passed_s`` seconds; return for how long a byte of the answer has been outstanding."""
        is_owed = self._answer is not None and self._transport is not None and self._transport.is_reading()
        self.stalled_s = self.stalled_s + passed_s if is_owed and not self.has_moved else 0.0
        self.has_moved = False
        return self.stalled_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; bound what the kernel receives for a connection that is not read."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; its callbacks are below. Called for every token, so it takes few steps."""
        if self._answer is None:
            self.close("bytes without a request")
            return
        if self._is_in_head and len(data) > MAX_HEAD_BYTES + 1 - self._raw_bytes:
            self._divide(data, MAX_HEAD_BYTES + 1 - self._raw_bytes)
            return
        size = len(data)
        if size >= YIELD_BYTES:
            self._yield()
        self._raw_bytes += size
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._pass_body()  # the client has a part of the answer, so it is not tried elsewhere
            self.close(f"not an HTTP answer: {error.__context__ or error}")
            return
        if self._chunks:
            self._pass_body()
        if self._raw_bytes - self._body_bytes - self._body_bytes // BYTES_PER_FRAMING > MAX_HEAD_BYTES:
            self.close(f"not an HTTP answer: over {MAX_HEAD_BYTES} bytes of head, chunk headers or trailers")

    def _divide(self, data: bytes, head_bytes: int) -> None:
        """Feed what may still be a head, and the rest only if that was no longer than a head may be."""
        self.data_received(data[:head_bytes])
        if self.is_open:
            self.data_received(data[head_bytes:])

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange under way."""
        self._fail(str(exc) if exc else "connection closed")

    def on_message_begin(self) -> None:
        """Refuse an answer that nobody asked for (parser callback)."""
        if self._answer is None:
            raise _Malformed("an answer without a request")
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header (parser callback); trailers are dropped."""
        if not self._is_in_head:
            return
        if len(self._headers) >= MAX_HEADERS:
            raise _Malformed(f"it has more than {MAX_HEADERS} headers")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Publish status and headers (parser callback)."""
        self._status = self._parser.get_status_code()
        if self._status < 200:
            return
        if self._status > MAX_STATUS:
            raise _Malformed(f"its status is {self._status}")
        if self._answer is not None:
            self._answer.status, self._answer.headers = self._status, self._headers
        self.has_moved = True
        self._is_in_head = False
        self._raw_bytes = 0

    def on_body(self, chunk: bytes) -> None:
        """Collect a chunk of the body (parser callback)."""
        self._chunks.append(chunk)

    def _pass_body(self) -> None:
        """Pass on what one read brought."""
        chunks, answer = self._chunks, self._answer
        if not chunks or answer is None:
            return
        chunk = chunks.pop() if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._body_bytes += len(chunk)
        self.has_moved = True
        answer.feed(chunk)

    def on_message_complete(self) -> None:
        """Finish the exchange (parser callback)."""
        if self._answer is None or self._status < 200:
            return
        self._pass_body()
        self._is_in_head = True
        self._raw_bytes = self._body_bytes = 0
        answer, self._answer = self._answer, None
        if self._parser.should_keep_alive() and self.is_open and not self.unsent_bytes:
            self.resume()
            self._on_idle(self)
        else:
            self.close("the pod closes after each answer, or has not read the request")
        answer.end()

    def _fail(self, why: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.end(EndpointLost(f"{self.address}: {why}", was_sent=True))
