"""One request of one client: its head and body, and the answer being written."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from wisp_gateway.errors import BodyTooLarge, GatewayError, Headers
from wisp_gateway.inbound import sse
from wisp_gateway.inbound.server import ClientProtocol

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_LOGGED_PATH = 300
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class ClientGone(Exception):
    """The client closed its connection."""


class Client:
    """ASGI exchange with the operations that the gateway needs.

    Args:
        scope, receive, send: ASGI's arguments; the extension ``wisp.protocol`` is the connection itself.
    """

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.entered_s = time.monotonic()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        # Percent-encoded as received, so that no path writes a line of the log.
        self.raw_path: str = scope["raw_path"][:MAX_LOGGED_PATH].decode("latin-1")
        self.headers: Headers = scope["headers"]
        self.host: str = (scope.get("client") or ("", 0))[0]
        self.port: int | None = (scope.get("server") or ("", None))[1]
        self.protocol: ClientProtocol = scope["extensions"]["wisp.protocol"]["connection"]
        self.request_id = self._request_id()
        self.model_key = ""  # set once the model is found
        self.status = 0
        self.is_streaming = False
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> str:
        """The value of a header, lower-case name; empty if it is absent."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")

    def headers_with_id(self) -> Headers:
        """The request's headers, ``x-request-id`` replaced by the validated one."""
        others = [header for header in self.headers if header[0] != b"x-request-id"]
        return [*others, (b"x-request-id", self.request_id.encode())]

    async def read_body(self, limit_bytes: int) -> bytes:
        """Read the complete body.

        Raises:
            BodyTooLarge: its length, or its ``content-length``, is over ``limit_bytes``.
            ClientGone: the client disconnected first.
        """
        too_large = BodyTooLarge(f"The request body is over {limit_bytes} bytes (--max-body-bytes).")
        if int(self.header(b"content-length") or 0) > limit_bytes:
            raise too_large
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > limit_bytes:
                raise too_large
            if not message.get("more_body"):
                return bytes(body)

    async def gone(self) -> None:
        """Return when the client has closed its connection. To be called after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a complete answer."""
        self.status = status
        length = (b"content-length", str(len(body)).encode())
        await self._start(status, [*headers, length])
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
        """Answer with an error: an event if the stream has begun, else a complete answer."""
        if self.is_streaming:
            await self.write(sse.error_event(error))
            await self.end_stream()
            self.status = error.status
        else:
            json_headers = [(b"content-type", b"application/json"), *error.headers()]
            await self.reply(error.status, error.body(), json_headers)

    async def _start(self, status: int, headers: Headers) -> None:
        headers = [*headers, (b"x-request-id", self.request_id.encode())]
        if self.protocol.is_stopping:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _request_id(self) -> str:
        given = self.header(b"x-request-id")
        return given if _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
