"""The engine's end of the pipe to the server: blocking sends, receives that wait or do not."""

from __future__ import annotations

import socket
from typing import Any

from wisp_runtime.engine.transport.wire import Decoder, encode

_READ_BYTES = 1 << 18


class ServerGone(Exception):
    """The server has closed its end of the pipe."""


class Pipe:
    """A connected stream socket that carries messages."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = Decoder()

    def send(self, message: Any) -> None:
        """Send one message; waits while the server is behind.

        Raises:
            ServerGone: the server has closed its end.
        """
        try:
            self._connection.sendall(encode(message))
        except ConnectionError as error:
            raise ServerGone from error

    def receive(self, *, waits: bool) -> list[Any]:
        """Return the messages that have come, in order; with ``waits``, at least one.

        Raises:
            ServerGone: the server has closed its end.
        """
        messages: list[Any] = []
        while data := self._read(waits=waits and not messages):
            messages += self._decoder.feed(data)
        return messages

    def _read(self, *, waits: bool) -> bytes:
        """Return some bytes; none if that would mean waiting and ``waits`` is false."""
        try:
            data = self._connection.recv(_READ_BYTES, 0 if waits else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        except ConnectionError as error:
            raise ServerGone from error
        if not data:
            raise ServerGone
        return data
