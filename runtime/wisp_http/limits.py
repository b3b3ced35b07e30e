"""Limits of one connection, the reasons for which it refuses by itself, and the bytes of a refusal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum


class Refusal(Enum):
    """Reason for a refusal: HTTP status, and code of the error body."""

    MALFORMED = 400, "invalid_request"
    HEAD_TOO_LARGE = 431, "headers_too_large"
    HEAD_LATE = 408, "head_timeout"
    BODY_LATE = 408, "request_timeout"
    TOO_MANY_CONNECTIONS = 503, "too_many_connections"
    STOPPING = 503, "server_stopping"


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one connection.

    Args:
        max_head_bytes: bytes of a request's head, and of its trailers.
        max_headers: headers of a request.
        max_connections, max_per_address: connections at once, and those of one address; one more is refused.
        max_pipelined: requests that may wait for the answer to an earlier one.
        head_timeout_s, body_timeout_s: time for a head and for a body to arrive.
        write_timeout_s: time in which a client must take ``min_write_bytes`` of what waits for it.
        max_drain_bytes, drain_timeout_s: bytes read and dropped after a refusal, and time for them.
    """

    max_head_bytes: int = 16 * 1024
    max_headers: int = 128
    max_connections: int = 8192
    max_per_address: int = 8192
    max_pipelined: int = 8
    head_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 30.0
    min_write_bytes: int = 16 * 1024
    max_drain_bytes: int = 32 * 1024 * 1024
    drain_timeout_s: float = 10.0


def refusal_bytes(kind: Refusal, message: str) -> bytes:
    """Write a refusal in OpenAI's shape, head and body."""
    status, code = kind.value
    type_ = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": type_, "param": None, "code": code}
    headers = [(b"retry-after", b"1")] if status == 503 else []
    return answer_bytes(status, headers, json.dumps({"error": error}).encode())


def answer_bytes(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Write a complete JSON answer after which the connection closes."""
    lines = [b"HTTP/1.1 %d Refused" % status, b"content-type: application/json"]
    lines += [b"%b: %b" % header for header in headers]
    lines += [b"connection: close", b"content-length: %d" % len(body), b"", body]
    return b"\r\n".join(lines)
