"""One request of one client: its head and body, and the answer being written."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from wisp_gateway.errors import BodyTooLarge, GatewayError, Headers, TooMuchHeld
from wisp_gateway.inbound import dialect
from wisp_gateway.inbound.byte_budget import ByteBudget
from wisp_gateway.inbound.request_body import BodyScan, RequestBody
from wisp_gateway.inbound.server import ClientProtocol
from wisp_gateway.inbound.usage import Usage
from wisp_http import request_ids
from wisp_http.trace_context import TRACE_HEADERS

if TYPE_CHECKING:
    from wisp_http.spans import Span

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# Scanning this much takes some 3 ms at worst; everything else of the gateway runs in between.
FEED_BYTES = 32 * 1024
SHORT_BYTES = 8 * 1024
_TOO_MUCH_HELD = "The gateway holds too many bytes of requests, or too many of yours (--max-held-bytes)."
MAX_LOGGED_PATH = 300
WRITE_BYTES = 256 * 1024
CLOSED_WITHIN_S = 1.0


class ClientGone(Exception):
    """The client closed its connection."""


class Client:
    """ASGI exchange with the operations that the gateway needs.

    Args:
        scope, receive, send: ASGI's arguments; the extension ``wisp.protocol`` is the connection itself.
        budget: budget of the bytes that the gateway holds for clients.
    """

    def __init__(self, scope: Message, receive: Receive, send: Send, budget: ByteBudget) -> None:
        self.entered_s = time.monotonic()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        # Percent-encoded as received, so that no path writes a line of the log.
        self.raw_path: str = scope["raw_path"][:MAX_LOGGED_PATH].decode("latin-1")
        self.headers: Headers = scope["headers"]
        self.host: str = (scope.get("client") or ("", 0))[0]
        self.port: int | None = (scope.get("server") or ("", None))[1]
        self.protocol: ClientProtocol = scope["extensions"]["wisp.protocol"]["connection"]
        self._turn = budget.turn
        self.held = budget.open(f"host:{self.host}")
        self.request_id = request_ids.id_of(self.header(request_ids.HEADER).encode("latin-1"))
        self.received_s: float | None = None  # set once its body is complete
        self.queue_s: float | None = None  # set once a pod has a place for it
        self.waited_for_wake: bool | None = None  # None: it was not admitted to the queue
        self.wake_trace = ""  # of the request that its wake is a part of
        self.span: Span | None = None
        self.dialect = dialect.of_request(self.path, self.headers)
        self.model_key = ""  # set once the model is found
        self.key_name = ""  # set once the API key is known
        self.status = 0
        self.refusal: GatewayError | None = None  # the gateway's own error that it got
        self.is_streaming = False
        self._has_head = False
        self.usage: Usage | None = None  # set at the answer's end, if its pod reports it
        self.streamed_tokens: int | None = None  # of an answer that is an event stream, so far
        self.own_headers: Headers = []  # of whatever the answer is
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> str:
        """The value of a header, lower-case name; empty if it is absent."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")

    def headers_with_id(self) -> Headers:
        """The request's headers, ``x-request-id`` the validated one; with a span, not its trace's."""
        replaced = {request_ids.HEADER} | (TRACE_HEADERS if self.span is not None else set())
        others = [header for header in self.headers if header[0] not in replaced]
        return [*others, (b"x-request-id", self.request_id.encode())]

    async def read_body(self, limit_bytes: int, too_large: BodyTooLarge) -> RequestBody:
        """Read and scan the complete body.

        Raises:
            BodyTooLarge: its length, or its ``content-length``, is over ``limit_bytes``: ``too_large``.
            TooMuchHeld: the gateway holds too many bytes, or too many of this client.
            NotJson, BadRequest: it is not a JSON object.
            ClientGone: the client disconnected first.
        """
        if int(self.header(b"content-length") or 0) > limit_bytes:
            raise too_large
        scan, chunks = BodyScan(), list[bytes]()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            if self.held.count + len(chunk) > limit_bytes:
                raise too_large
            if not self.held.take(len(chunk)):
                raise TooMuchHeld(_TOO_MUCH_HELD, retry_after_s=1)
            await self._scan(scan, chunk)
            chunks.append(chunk)
            if not message.get("more_body"):
                self.received_s = time.monotonic()
                return scan.finish(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    async def _scan(self, scan: BodyScan, chunk: bytes) -> None:
        """Scan a chunk of the body: a short one at once, a long one in turns with others."""
        if len(chunk) <= SHORT_BYTES:
            scan.feed(chunk)
            return
        for start in range(0, len(chunk), FEED_BYTES):
            async with self._turn:
                scan.feed(chunk[start : start + FEED_BYTES])
                await asyncio.sleep(0)

    def charge_model(self) -> None:
        """Charge the held bytes to the model instead of the client.

        Raises:
            TooMuchHeld: too many bytes are held for this model.
        """
        if not self.held.move_to(f"model:{self.model_key}"):
            raise TooMuchHeld(_TOO_MUCH_HELD, retry_after_s=1)

    async def gone(self) -> None:
        """Return when the client has closed its connection. To be called after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a complete answer."""
        self.status = status
        length = [(b"content-length", str(len(body)).encode())] if status != 304 else []
        await self._start(status, [*headers, *length])
        while len(body) > WRITE_BYTES:
            await self.write(body[:WRITE_BYTES])  # waits while the client does not read
            body = body[WRITE_BYTES:]
        await self._send({"type": "http.response.body", "body": body})

    async def begin_stream(self, headers: Headers) -> None:
        """Send the head of an event stream; from here on errors are events. A second call does nothing."""
        if self.is_streaming:
            return
        self.is_streaming, self.status = True, 200
        await self._start(200, headers)

    async def write(self, data: bytes) -> None:
        """Send a chunk of the stream."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, last: bytes = b"") -> None:
        """Send the end of the stream."""
        await self._send({"type": "http.response.body", "body": last})

    async def fail(self, error: GatewayError) -> None:
        """Answer with an error: an event if the stream has begun, else a complete answer.

        A client that does not read, or has a part of a complete answer, is cut off instead.
        """
        if self._has_head and not (self.is_streaming and self.protocol.is_writable):
            self.status = error.status
            self.protocol.abort()
            with contextlib.suppress(TimeoutError):  # behind a pipelined request it is not seen
                await asyncio.wait_for(self.gone(), CLOSED_WITHIN_S)
        elif self.is_streaming:
            await self.write(dialect.error_event(self.dialect, error, self.request_id))
            await self.end_stream()
            self.status = error.status
        else:
            json_headers = [(b"content-type", b"application/json"), *error.headers()]
            body = dialect.error_body(self.dialect, error, self.request_id)
            await self.reply(error.status, body, json_headers)

    async def _start(self, status: int, headers: Headers) -> None:
        self._has_head = True
        headers = [*headers, *self.own_headers, (b"x-request-id", self.request_id.encode())]
        if self.dialect is dialect.Dialect.ANTHROPIC:
            headers.append((b"request-id", self.request_id.encode()))
        if self.protocol.is_stopping:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
