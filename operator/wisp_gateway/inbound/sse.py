"""Server-sent events written by the gateway: heartbeats while a request waits, errors after the 200."""

from __future__ import annotations

import json

from wisp_gateway.errors import GatewayError, Headers, UpstreamFailed

# An error of a pod that is passed on as an event; a longer answer is none, and parsing it stops the loop.
MAX_ERROR_BYTES = 16 * 1024
MEDIA_TYPE = b"text/event-stream"
HEADERS: Headers = [
    (b"content-type", MEDIA_TYPE + b"; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def comment(text: str) -> bytes:
    """Encode a comment: clients skip it, proxies count it as activity."""
    return b": " + text.replace("\r", " ").replace("\n", " ").encode() + b"\n\n"


def error_event(error: GatewayError) -> bytes:
    """Encode an error as the official SDKs raise it; starts on a new line even after a partial event."""
    return b"\n\ndata: " + error.body() + b"\n\n"


def answer_event(status: int, body: bytes) -> bytes:
    """Encode a pod's non-streamed answer for a client whose stream has begun: an error event."""
    try:
        document = json.loads(body) if len(body) <= MAX_ERROR_BYTES else None
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and document.get("error"):
        return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"
    return error_event(UpstreamFailed(f"The pod answered {status} and no stream of events."))
