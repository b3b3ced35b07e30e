"""Clients at the level of sockets: they send any bytes, in any order, and read when they like."""

from __future__ import annotations

import json
import socket
from typing import Any

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def connect(world: Any, timeout_s: float = 60.0, receive_buffer_bytes: int | None = None) -> socket.socket:
    """Open a connection to the gateway."""
    host, port = world.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.settimeout(timeout_s)
    if receive_buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    connection.connect((host, int(port)))
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Read until the gateway closes."""
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """Read until ``mark`` was received."""
    received = b""
    while mark not in received:
        chunk = connection.recv(65536)
        assert chunk, f"closed before {mark!r}: {received!r}"
        received += chunk
    return received


def request(path: str = "/v1/completions", *headers: str, **body: Any) -> bytes:
    """Return the bytes of a POST; without a body's fields, a streamed completion by model m."""
    content = json.dumps(body or {"model": "m", "prompt": "x", "stream": True}).encode()
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(content)}", "", ""]).encode() + content
