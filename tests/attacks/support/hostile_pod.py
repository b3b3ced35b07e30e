"""A pod of an attacker: raw bytes on a port of this process, one thread a connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

Handler = Callable[[socket.socket, bytes], None]
READY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class HostilePod:
    """A TCP server whose ``handler`` gets each request that is no probe: its socket, and the bytes so far.

    Attributes:
        requests: number of requests that reached the pod.
    """

    def __init__(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> None:
        self.handler, self.requests = handler, 0
        self._server = socket.create_server((host, port))
        self.port = int(self._server.getsockname()[1])
        self._connections: list[socket.socket] = []
        self._probe: tuple[bytes, bytes] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """Address as the directory names it."""
        return f"127.0.0.1:{self.port}"

    def answers_probe_with(self, head: bytes, chunk: bytes) -> None:
        """Answer probes with ``head``, then ``chunk`` without an end."""
        self._probe = (head, chunk)

    def close(self) -> None:
        """Close every connection."""
        self._server.close()
        for connection in self._connections:
            connection.close()

    def _answer_probe(self, connection: socket.socket) -> None:
        if self._probe is None:
            connection.sendall(READY)
            return
        head, chunk = self._probe
        connection.sendall(head)
        while True:
            connection.sendall(chunk)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while data := connection.recv(1 << 20):
                if data.startswith((b"GET /readyz", b"GET /livez")):
                    self._answer_probe(connection)
                    continue
                self.requests += 1
                self.handler(connection, data)
        connection.close()
