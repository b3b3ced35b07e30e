"""An attacker's connection: bytes as they are, no HTTP library between."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """An answer as it came.

    Attributes:
        status: status of the first answer on the connection; 0 where none came.
        head: bytes of its head.
        body: bytes after it, framing included.
    """

    status: int
    head: bytes = b""
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body's JSON document."""
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """OpenAI's error code, None where the body is none."""
        try:
            return self.json["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return None


@dataclass
class Connection:
    """A TCP connection.

    Attributes:
        receive_buffer: size of the receive buffer; small for a client that does not read.
    """

    host: str
    port: int
    timeout_s: float = 30.0
    receive_buffer: int | None = None
    socket: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        """Connect."""
        self.socket = socket.socket()
        if self.receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        self.socket.settimeout(self.timeout_s)
        self.socket.connect((self.host, self.port))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close."""
        self.socket.close()

    def send(self, data: bytes) -> Connection:
        """Send; the other side may have closed."""
        with suppress(OSError):
            self.socket.sendall(data)
        return self

    def flood(self, head: bytes, chunk: bytes, *, max_bytes: int, max_s: float = 20.0) -> int:
        """Send ``head``, then ``chunk`` until the other side closes; returns the bytes it took."""
        sent, deadline = 0, time.monotonic() + max_s
        self.send(head)
        self.socket.settimeout(1.0)
        while sent < max_bytes and time.monotonic() < deadline:
            try:
                sent += self.socket.send(chunk)
            except TimeoutError:
                continue
            except OSError:
                break
        self.socket.settimeout(self.timeout_s)
        return sent

    def read(self, max_bytes: int = 1 << 22) -> bytes:
        """Read until the other side closes, or the time is up."""
        data = bytearray()
        with suppress(OSError):
            while len(data) < max_bytes and (chunk := self.socket.recv(65536)):
                data += chunk
        return bytes(data)

    def answer(self) -> Answer:
        """Read one answer: to its announced length, its last chunk, or the end."""
        data = bytearray()
        with suppress(OSError):
            while not _is_complete(data) and (chunk := self.socket.recv(65536)):
                data += chunk
        head, _, body = bytes(data).partition(b"\r\n\r\n")
        status = int(head[9:12]) if head[9:12].isdigit() else 0
        return Answer(status, head, body)

    def is_closed(self, within_s: float) -> bool:
        """Whether the other side closes within this time; reads meanwhile."""
        self.socket.settimeout(within_s)
        deadline = time.monotonic() + within_s
        try:
            while time.monotonic() < deadline:
                if not self.socket.recv(65536):
                    return True
        except TimeoutError:
            return False
        except OSError:
            return True
        return False


def _is_complete(data: bytes | bytearray) -> bool:
    head, separator, body = bytes(data).partition(b"\r\n\r\n")
    if not separator or head[9:12] == b"204":
        return bool(separator)
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line[15:])
    return b"transfer-encoding: chunked" in head.lower() and body.endswith(b"0\r\n\r\n")


def post(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """Return the bytes of a POST with a JSON body."""
    size = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json"]
    lines += [f"content-length: {size}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def get(path: str, *headers: str) -> bytes:
    """Return the bytes of a GET."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: x", *headers, "", ""]).encode()


CHAT_PATH = "/v1/chat/completions"


def chat(model: str = "mine", **fields: Any) -> bytes:
    """Return the body of a chat."""
    message = {"role": "user", "content": "hello"}
    return json.dumps({"model": model, "messages": [message], **fields}).encode()
