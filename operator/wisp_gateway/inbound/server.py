"""HTTP/1.1 server: uvicorn with limits (:mod:`wisp_http.protocol`), OpenAI-shaped refusals, direct writes.

``send_chunk`` writes a chunk of a streamed body from the callback that received it, without waking the
request's task: that makes a token cheap (measured in docs/gateway.md).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn

from wisp_gateway.config import Config
from wisp_gateway.errors import (
    BadRequest,
    GatewayError,
    HeadersTooLarge,
    RequestTimeout,
    StartError,
    Stopping,
    TooManyConnections,
)
from wisp_gateway.inbound import dialect
from wisp_http.limits import ConnectionLimits, Refusal, answer_bytes
from wisp_http.protocol import LimitedProtocol

log = logging.getLogger(__name__)

HIGH_WATER_BYTES = 64 * 1024
# After the end of the drain: time for the last errors to be sent, then connections are aborted.
ABORT_AFTER_S = 2.0


class ClientProtocol(LimitedProtocol):
    """One connection of a client."""

    is_stopping = False  # from now on each answer closes its connection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_writable: Callable[[], None] | None = None

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

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""
        self.transport.abort()

    def resume_writing(self) -> None:
        """Call ``on_writable``: the client has caught up."""
        super().resume_writing()
        if self.on_writable is not None:
            self.on_writable()

    def on_message_begin(self) -> None:
        """Pass the connection itself to the application, as an ASGI extension."""
        super().on_message_begin()
        self.scope["extensions"] = {"wisp.protocol": {"connection": self}}

    def refusal(self, kind: Refusal, message: str) -> bytes:
        """Return a refusal as the rest of the gateway writes its errors."""
        error = _ERRORS[kind](message)
        path, headers = (self.scope.get("path", ""), self.headers) if self.scope else ("", [])
        body = dialect.error_body(dialect.of_request(path, headers), error, "")
        return answer_bytes(error.status, error.headers(), body)


_ERRORS: dict[Refusal, Callable[[str], GatewayError]] = {
    Refusal.MALFORMED: BadRequest,
    Refusal.HEAD_TOO_LARGE: HeadersTooLarge,
    Refusal.HEAD_LATE: RequestTimeout,
    Refusal.BODY_LATE: RequestTimeout,
    Refusal.TOO_MANY_CONNECTIONS: partial(TooManyConnections, retry_after_s=1),
    Refusal.STOPPING: partial(Stopping, retry_after_s=1),
}


class Server(uvicorn.Server):
    """uvicorn's server with a three-step stop: not ready, not listening, running requests aborted.

    Args:
        on_stopping: callback of the first signal; ``/readyz`` should fail from then on.
        on_deadline: callback at the end of ``drain_timeout_s``.
    """

    def __init__(
        self, app: Any, settings: Config, on_stopping: Callable[[], None], on_deadline: Callable[[], None]
    ) -> None:
        limits = ConnectionLimits(
            max_head_bytes=settings.max_header_bytes,
            max_connections=settings.max_connections,
            max_per_address=settings.max_connections_per_address,
            head_timeout_s=settings.header_timeout_s,
            body_timeout_s=settings.body_timeout_s,
            write_timeout_s=settings.write_timeout_s,
        )
        self._protocol = cast(
            type[ClientProtocol],
            type("Protocol", (ClientProtocol,), {"limits": limits, "addresses": Counter()}),
        )
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
            self._end_requests()
            return
        self._is_stopping = self._protocol.is_stopping = True
        self._on_stopping()
        asyncio.get_running_loop().call_later(self._settings.shutdown_delay_s, self._stop_listening)

    def _stop_listening(self) -> None:
        self.should_exit = True
        asyncio.get_running_loop().call_later(self._settings.drain_timeout_s, self._end_requests)

    def _end_requests(self) -> None:
        self._on_deadline()
        asyncio.get_running_loop().call_later(ABORT_AFTER_S, self._abort_connections)

    def _abort_connections(self) -> None:
        """Close what is left: clients that do not read, or do not close."""
        for connection in list(self.server_state.connections):
            cast(ClientProtocol, connection).abort()

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
