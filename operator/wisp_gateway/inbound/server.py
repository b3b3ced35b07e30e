"""HTTP/1.1 server: uvicorn with limits, OpenAI-shaped refusals and direct writes.

``send_chunk`` writes a chunk of a streamed body from the callback that received it, without waking the
request's task: that makes a token cheap (measured in docs/gateway.md).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from wisp_gateway.config import Config
from wisp_gateway.errors import (
    BadRequest,
    GatewayError,
    HeadersTooLarge,
    RequestTimeout,
    StartError,
    TooManyConnections,
)

log = logging.getLogger(__name__)

HIGH_WATER_BYTES = 64 * 1024
# Answered even over the connection limit, or a flood would look like a dead gateway.
PROBES = (b"/livez", b"/readyz", b"/metrics")
SURPLUS_S = 1.0


class ClientProtocol(HttpToolsProtocol):
    """One connection of a client."""

    max_header_bytes = 64 * 1024
    max_connections = 8192
    header_timeout_s = 30.0
    body_timeout_s = 60.0
    is_stopping = False  # from now on each answer closes its connection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_writable: Callable[[], None] | None = None
        self._header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_surplus = False

    def send_chunk(self, data: bytes) -> bool:
        """Write a chunk of a chunked body at once; False: the write buffer is full."""
        transport = self.transport
        if data and not transport.is_closing():
            transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return transport.get_write_buffer_size() < HIGH_WATER_BYTES

    @property
    def is_writable(self) -> bool:
        """True unless writing is paused; ``on_writable`` is called when it resumes."""
        return not self.flow.write_paused

    def resume_writing(self) -> None:
        """Call ``on_writable``: the client has caught up."""
        super().resume_writing()
        if self.on_writable is not None:
            self.on_writable()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request's head; note if this connection is over the limit."""
        super().connection_made(transport)
        self._is_surplus = len(self.connections) > self.max_connections
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Pass the connection itself to the application, as an ASGI extension."""
        super().on_message_begin()
        self._header_bytes = 0
        self._await_head()
        self.scope["extensions"] = {"wisp.protocol": {"connection": self}}

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass the request to the application, unless it was refused while its head arrived."""
        if self._header_bytes > self.max_header_bytes:
            self._stop_timer()
            return
        if self._is_surplus and self.url not in PROBES:
            self.refuse(TooManyConnections(f"{self.max_connections} clients are connected.", retry_after_s=1))
            return
        self._start_timer(self.body_timeout_s, self._body_is_late)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the timer of the body."""
        self._stop_timer()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP (uvicorn's hook), in OpenAI's shape."""
        self.refuse(BadRequest(msg))

    def refuse(self, error: GatewayError) -> None:
        """Answer without the application, and close."""
        if self.transport.is_closing():
            return
        self._stop_timer()
        body = error.body()
        lines = [f"HTTP/1.1 {error.status} Refused".encode(), b"content-type: application/json"]
        lines += [b"%b: %b" % header for header in error.headers()]
        lines += [b"connection: close", b"content-length: %d" % len(body), b"", body]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()

    def _count(self, size: int) -> None:
        before, self._header_bytes = self._header_bytes, self._header_bytes + size
        if before <= self.max_header_bytes < self._header_bytes:
            self.refuse(HeadersTooLarge(f"The request head is over {self.max_header_bytes} bytes."))

    def _await_head(self) -> None:
        self._start_timer(SURPLUS_S if self._is_surplus else self.header_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._header_bytes:
            self.refuse(BadRequest(f"No complete request head within {self.header_timeout_s:g} s."))
        else:
            self.transport.close()

    def _body_is_late(self) -> None:
        if self.cycle is None or self.cycle.response_started:
            self.transport.close()  # refused already, and still sending
        else:
            self.refuse(RequestTimeout(f"No complete request body within {self.body_timeout_s:g} s."))

    def _start_timer(self, after_s: float, then: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(after_s, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """uvicorn's server with a three-step stop: not ready, not listening, running requests aborted.

    Args:
        on_stopping: callback of the first signal; ``/readyz`` should fail from then on.
        on_deadline: callback at the end of ``drain_timeout_s``.
    """

    def __init__(
        self, app: Any, settings: Config, on_stopping: Callable[[], None], on_deadline: Callable[[], None]
    ) -> None:
        limits = {
            "max_header_bytes": settings.max_header_bytes,
            "max_connections": settings.max_connections,
            "header_timeout_s": settings.header_timeout_s,
            "body_timeout_s": settings.body_timeout_s,
        }
        self._protocol = cast(type[ClientProtocol], type("LimitedProtocol", (ClientProtocol,), limits))
        super().__init__(
            uvicorn.Config(
                app,
                http=self._protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=int(settings.keep_alive_s),
                timeout_graceful_shutdown=int(settings.drain_timeout_s) + 5,
            )
        )
        self._settings = settings
        self._on_stopping = on_stopping
        self._on_deadline = on_deadline
        self._is_stopping = False

    def stop(self) -> None:
        """Begin to stop; a second call aborts running requests."""
        if self._is_stopping:
            self.should_exit = True
            self._on_deadline()
            return
        self._is_stopping = self._protocol.is_stopping = True
        self._on_stopping()
        asyncio.get_running_loop().call_later(self._settings.shutdown_delay_s, self._stop_listening)

    def _stop_listening(self) -> None:
        self.should_exit = True
        asyncio.get_running_loop().call_later(self._settings.drain_timeout_s, self._on_deadline)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT, and exit 0 afterwards (uvicorn would die of the signal)."""
        loop = asyncio.get_running_loop()
        stops: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
        try:
            for number in stops:
                loop.add_signal_handler(number, self.stop)
        except (ValueError, RuntimeError):  # not the main thread: the caller uses stop()
            stops = ()
        yield
        for number in stops:
            loop.remove_signal_handler(number)


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises:
        StartError: the port is taken, or the address is not local.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise StartError(
            f"cannot listen on {host}:{port}: {why}. Choose another --port or --host."
        ) from error
