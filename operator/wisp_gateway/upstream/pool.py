"""Pool of keep-alive connections to pods, and the gateway's own small requests.

A pod that restarts closes its connections, which the event loop reports: the pool hands out none that is
known to be closed.
"""

from __future__ import annotations

import asyncio

from wisp_gateway.errors import EndpointLost, Headers
from wisp_gateway.upstream.connection import Answer, Connection

MAX_IDLE_CONNECTIONS = 256
MAX_KEPT_BYTES = 64 * 1024
OWN_PREFIX = b"x-wisp-"
_HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
_OWN_OF_ANSWERS = (OWN_PREFIX, b"access-control-")  # the gateway decides which pages may read an answer
# Written anew by the gateway, or private to the client, such as its key.
_NOT_FORWARDED = _HOP_BY_HOP | {
    b"accept-encoding",
    b"api-key",
    b"authorization",
    b"content-length",
    b"cookie",
    b"expect",
    b"host",
    b"x-api-key",
}
_IDENTITY = {b"content-length", b"date", b"server", b"x-request-id", b"request-id"}
# What a pod must not say for the address that all models share: to every request of this client, or of all.
_OF_THE_ADDRESS = {
    b"alt-svc",
    b"clear-site-data",
    b"location",
    b"nel",
    b"public-key-pins",
    b"refresh",
    b"report-to",
    b"reporting-endpoints",
    b"service-worker-allowed",
    b"set-cookie",
    b"strict-transport-security",
}
# A page of a pod would run in the origin of the gateway's own page, which holds keys: it is shown as text,
# or without scripts and without an origin.
_INERT: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
]
_LEFT_OUT_OF_ANSWERS = _HOP_BY_HOP | _OF_THE_ADDRESS | _IDENTITY | {name for name, _ in _INERT}


class Pool:
    """Idle and busy connections, by address."""

    def __init__(self, *, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[str, list[Connection]] = {}
        self._all: set[Connection] = set()

    async def exchange(self, address: str, head: bytes, body: bytes = b"") -> Answer:
        """Send a request to ``address`` (``host:port``) and wait for the first byte of the answer's body.

        Raises:
            EndpointLost: no connection, or it broke first (``was_sent``).
        """
        connection = self._take(address) or await self._connect(address)
        answer = connection.request(head, body)
        try:
            await asyncio.shield(answer.opened)
        except asyncio.CancelledError:
            answer.abort()
            raise
        return answer

    async def call(self, address: str, head: bytes, body: bytes = b"", *, timeout_s: float) -> int:
        """Send a small request and return the status; as :meth:`fetch`."""
        status, _ = await self.fetch(address, head, body, timeout_s=timeout_s)
        return status

    async def fetch(
        self, address: str, head: bytes, body: bytes = b"", *, timeout_s: float
    ) -> tuple[int, bytes]:
        """Send a small request and return status and body.

        Raises:
            EndpointLost: as :meth:`exchange`, or no complete answer in time, or one that is too long.
        """
        answer: Answer | None = None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.exchange(address, head, body)
                kept = _Kept(answer)
                answer.attach(kept)
                await asyncio.shield(answer.finished)
                return answer.status, bytes(kept.body)
        except TimeoutError as error:
            raise EndpointLost(f"{address}: no answer within {timeout_s:g} s", was_sent=True) from error
        finally:
            if answer is not None:
                answer.abort()

    def close_stalled(self, passed_s: float, idle_timeout_s: float) -> None:
        """Close connections whose answer stalled for ``idle_timeout_s``; called every ``passed_s``."""
        for connection in list(self._all):
            if not connection.is_open:
                self._all.discard(connection)
            elif connection.watch(passed_s) > idle_timeout_s:
                connection.close(f"no byte for {idle_timeout_s:g} s")

    def keep_only(self, addresses: set[str]) -> None:
        """Close the idle connections to all other addresses."""
        for address in self._idle.keys() - addresses:
            for connection in self._idle.pop(address):
                connection.close("the pod is gone")

    def close(self) -> None:
        """Close every connection."""
        for connection in self._all:
            connection.close("the gateway stops")
        self._idle.clear()
        self._all.clear()

    def _take(self, address: str) -> Connection | None:
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
        return None

    def _give(self, connection: Connection) -> None:
        idle = self._idle.setdefault(connection.address, [])
        if len(idle) < MAX_IDLE_CONNECTIONS:
            idle.append(connection)
        else:
            connection.close("enough idle connections")

    async def _connect(self, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(address, self._give), host.strip("[]"), int(port)
                )
        except (OSError, TimeoutError) as error:
            raise EndpointLost(f"{address}: {error or 'connect timed out'}", was_sent=False) from error
        self._all.add(connection)
        return connection


def request_head(
    method: str, path: str, address: str, headers: Headers, *, body_bytes: int, own: Headers | None = None
) -> bytes:
    """Write a request's head: hop-by-hop headers and credentials left out, length and host added.

    Args:
        headers: the client's headers, lower-case names; those that begin with ``x-wisp-`` are left out.
        own: headers of the gateway itself, which pods may trust.
    """
    named = {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
    left_out = _NOT_FORWARDED | named
    lines = [f"{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {body_bytes}\r\n".encode()]
    lines += [
        b"%b: %b\r\n" % header
        for header in headers
        if header[0] not in left_out and not header[0].startswith(OWN_PREFIX)
    ]
    lines += [b"%b: %b\r\n" % header for header in own or ()]
    return b"".join([*lines, b"\r\n"])


def answer_headers(headers: Headers) -> Headers:
    """Return a pod's headers for the client: framing and identity are the gateway's, nothing is a page."""
    kept = (header for header in headers if header[0] not in _LEFT_OUT_OF_ANSWERS)
    return [*(header for header in kept if not header[0].startswith(_OWN_OF_ANSWERS)), *_INERT]


class _Kept:
    """Sink that keeps what it gets, and ends an answer longer than the gateway's own requests need."""

    def __init__(self, answer: Answer) -> None:
        self.body = bytearray()
        self._answer = answer

    def __call__(self, chunk: bytes) -> None:
        self.body += chunk
        if len(self.body) > MAX_KEPT_BYTES:
            self._answer.abort()
