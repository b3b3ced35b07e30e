"""Server-sent events of the gateway: head of a stream, and heartbeats while a request waits."""

from __future__ import annotations

from wisp_gateway.errors import Headers

MEDIA_TYPE = b"text/event-stream"
HEADERS: Headers = [
    (b"content-type", MEDIA_TYPE + b"; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(kind: str, data: str) -> bytes:
    """Encode a named event with one line of data."""
    return f"event: {kind}\ndata: {data}\n\n".encode()


def comment(text: str) -> bytes:
    """Encode a comment: clients skip it, proxies count it as activity."""
    return b": " + text.replace("\r", " ").replace("\n", " ").encode() + b"\n\n"
