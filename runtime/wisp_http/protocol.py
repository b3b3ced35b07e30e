"""uvicorn's HTTP/1.1 protocol with limits on bytes, time and unread answers.

Every limit holds for bytes as they lie on the wire, before a parser has made anything of them. A refusal is
never written into another request's answer. A refused client that still sends is read, up to a bound, so that
it sees the answer and no reset.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from wisp_http.answer_transport import AnswerTransport
from wisp_http.limits import ConnectionLimits, Refusal, refusal_bytes
from wisp_http.pipeline_flow import PipelineFlow
from wisp_http.upgrade import head_without_upgrade
from wisp_http.write_watch import WriteWatch

# Answered even over the connection limit, or a flood would look like a dead server.
PROBES = (b"/livez", b"/readyz", b"/metrics")
SURPLUS_S = 1.0
SLICE_BYTES = 16 * 1024
# Bytes of a body for each byte of its framing (chunk sizes, extensions, trailers), beside the head's limit:
# chunks have some 24 bytes on average, or each costs more calls than it is worth.
BYTES_PER_FRAMING = 4
# Of a body that nobody reads, so that a short one costs its client no connection.
MAX_PARSED_DRAIN_BYTES = 256 * 1024
KERNEL_BUFFER_BYTES = 32 * 1024  # for each direction; the kernel doubles it and charges it to the container


class _Stopped(Exception):
    """Raised inside a parser's callback, so that it parses no further."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection; a server derives its own, with its ``limits`` and its count of ``addresses``."""

    limits = ConnectionLimits()
    addresses: ClassVar[Counter[str]] = Counter()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._raw_bytes = 0  # since the head or the body began
        self._body_bytes = 0
        self._drained_bytes = 0
        self._is_dropping = False  # bytes that arrive are read and dropped: the connection is to close
        self._is_surplus = False
        self._drain_timeout_s = self.limits.drain_timeout_s
        self._timer: asyncio.TimerHandle | None = None

    def refusal(self, kind: Refusal, message: str) -> bytes:
        """Return a complete answer, head and body, with ``connection: close``; a server may have its own."""
        return refusal_bytes(kind, message)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request's head; note if this connection is over the limit."""
        super().connection_made(transport)
        self.flow = PipelineFlow(transport, self.pipeline)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                connection.setsockopt(socket.SOL_SOCKET, buffer, KERNEL_BUFFER_BYTES)
        self._writes = WriteWatch(transport, self.limits.write_timeout_s, self.limits.min_write_bytes)
        self._address = self.client[0] if self.client else ""
        self.addresses[self._address] += 1
        self._is_surplus = (
            len(self.connections) > self.limits.max_connections
            or self.addresses[self._address] > self.limits.max_per_address
        )
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Feed the parser in slices, so that a limit holds within one read of the socket, too."""
        self._unset_keepalive_if_required()
        start = 0
        while start < len(data) and not self.transport.is_closing():
            if self._is_dropping:
                self._drain(len(data) - start)
                return
            part = data[start : start + self._slice_bytes()]
            start += len(part)
            self._raw_bytes += len(part)
            try:
                self._parse(part)
            except httptools.HttpParserError:
                self.refuse(Refusal.MALFORMED, "Invalid HTTP request received.")
            else:
                self._check_raw_bytes()
        if self._timer is None and self._is_in_head and not self._is_answering:
            self._await_head()  # bytes before a request line, which the parser skips

    def _parse(self, part: bytes) -> None:
        """Feed the parser; a request to change the protocol is parsed anew without that wish."""
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade as upgrade:
            head = head_without_upgrade(self.parser, self.url, self.headers)
            self.parser = httptools.HttpRequestParser(self)
            self._parse(head + part[upgrade.args[0] :])

    def _slice_bytes(self) -> int:
        if not self._is_in_head:
            return SLICE_BYTES
        return max(1, min(SLICE_BYTES, self.limits.max_head_bytes + 1 - self._raw_bytes))

    def _check_raw_bytes(self) -> None:
        limit = self.limits.max_head_bytes
        if self._is_in_head and self._raw_bytes > limit:
            self._refuse_head()
        elif not self._is_in_head and self._framing_bytes > limit:
            self.refuse(Refusal.MALFORMED, f"The body has over {limit} bytes of chunk headers or trailers.")

    @property
    def _framing_bytes(self) -> int:
        return self._raw_bytes - self._body_bytes - self._body_bytes // BYTES_PER_FRAMING

    def _refuse_head(self) -> None:
        bounds = f"{self.limits.max_head_bytes} bytes or {self.limits.max_headers} headers"
        self.refuse(Refusal.HEAD_TOO_LARGE, f"The request head is over {bounds}.")

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        super().on_message_begin()
        self._is_in_head = True
        self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer is dropped, for the request has long begun."""
        if not self._is_in_head:
            return
        if len(self.headers) >= self.limits.max_headers:
            self._refuse_head()
            raise _Stopped
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass the request to the application, unless it is one too many."""
        if self.parser.get_method() == b"CONNECT":
            self.refuse(Refusal.MALFORMED, "This server is no proxy.")
            raise _Stopped
        if self.parser.should_upgrade():
            return  # parsed anew, see _parse
        if self._is_surplus and self.url not in PROBES:
            bounds = f"{self.limits.max_connections} clients, or {self.limits.max_per_address} of one address"
            self.refuse(Refusal.TOO_MANY_CONNECTIONS, f"{bounds}, are connected.")
            raise _Stopped
        if len(self.pipeline) >= self.limits.max_pipelined:
            self.refuse(Refusal.MALFORMED, "Too many requests before the answer to the first one.")
            raise _Stopped
        super().on_headers_complete()
        self._is_in_head = False
        self._raw_bytes = self._body_bytes = 0
        self._start_timer(self.limits.body_timeout_s, self._body_is_late)
        self.cycle.transport = AnswerTransport(self.transport, self.close_gently)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Count a chunk of the body; one that nobody reads any more is dropped, up to a bound."""
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._drain(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the timer of the body; what comes next is a head."""
        if self.parser.should_upgrade():
            return
        self._stop_timer()
        self._is_in_head = True
        self._raw_bytes = 0
        super().on_message_complete()

    def _drain(self, count: int) -> None:
        self._drained_bytes += count
        if self._drained_bytes > self.limits.max_drain_bytes:
            self.transport.abort()
        elif self._drained_bytes > MAX_PARSED_DRAIN_BYTES and not self._is_dropping:
            self.close_gently()  # from here on it is not even parsed
            raise _Stopped

    def refuse(self, kind: Refusal, message: str) -> None:
        """Answer without the application if no other answer is in the way, and close."""
        if self.transport.is_closing() or self._is_dropping:
            return
        self._stop_timer()
        self._is_dropping = True
        if self._is_surplus or kind is Refusal.STOPPING:
            self._drain_timeout_s = SURPLUS_S
        is_in_the_way = self._is_answering if self._is_in_head else not self._withdraw()
        if is_in_the_way:
            return  # closed when the answers under way are complete
        self.transport.write(self.refusal(kind, message))
        self.close_gently()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _withdraw(self) -> bool:
        """Take the unfinished request back from the application; False if no refusal can be written."""
        cycle = self.cycle
        is_first = all(waiting is not cycle for waiting, _ in self.pipeline)
        if not is_first:
            self.pipeline.popleft()
        elif cycle.response_complete:
            self.close_gently()
        elif cycle.response_started:
            self.transport.abort()
        is_refusable = is_first and not cycle.response_started
        cycle.disconnected = True
        cycle.message_event.set()
        return is_refusable

    def on_response_complete(self) -> None:
        """Begin the next request, or close if a refused one came after it."""
        is_last = not self.pipeline
        super().on_response_complete()
        if self._is_dropping and is_last:
            self.close_gently()

    def close_gently(self) -> None:
        """Close when what was written is sent; read on, within bounds, while the client still sends."""
        if self.transport.is_closing():
            return
        is_complete = self.cycle is not None and not self.cycle.more_body and self._is_in_head
        if self._is_dropping or not is_complete:
            self._is_dropping = True
            self._start_timer(self._drain_timeout_s, self.transport.abort)
            self.transport.write_eof()
            self._writes.start()
        else:
            self._close()

    def _close(self) -> None:
        self.transport.close()
        self._writes.start()

    def shutdown(self) -> None:
        """Close after the answer under way; a request whose body has not arrived is refused."""
        if self._is_answering and self.cycle.more_body and not self.cycle.response_started:
            self.refuse(Refusal.STOPPING, "The server is stopping. Send the request again.")
        elif self._is_answering:
            self.cycle.keep_alive = False
        else:
            self._close()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if the client has not read its last answer."""
        super().timeout_keep_alive_handler()
        self._writes.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the timers."""
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.addresses[self._address] -= 1
        if not self.addresses[self._address]:
            del self.addresses[self._address]
        self._writes.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Give a client that does not read its time."""
        super().pause_writing()
        self._writes.start()

    def resume_writing(self) -> None:
        """Stop the time: the client has caught up."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._writes.stop()

    def _await_head(self) -> None:
        self._start_timer(SURPLUS_S if self._is_surplus else self.limits.head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._raw_bytes:
            message = f"No complete request head within {self.limits.head_timeout_s:g} s."
            self.refuse(Refusal.HEAD_LATE, message)
        else:
            self._close()

    def _body_is_late(self) -> None:
        message = f"No complete request body within {self.limits.body_timeout_s:g} s."
        self.refuse(Refusal.BODY_LATE, message)

    def _start_timer(self, after_s: float, then: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(after_s, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
