"""Server-sent events that the gateway writes itself: heartbeats while it holds, errors after the 200."""

from __future__ import annotations

import json

from wisp_gateway.errors import GatewayError, Headers, UpstreamFailed

MEDIA_TYPE = b"text/event-stream"
HEADERS: Headers = [
    (b"content-type", MEDIA_TYPE + b"; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def comment(text: str) -> bytes:
    """A line that clients skip and proxies count as life."""
    return b": " + text.replace("\r", " ").replace("\n", " ").encode() + b"\n\n"


def error_event(error: GatewayError) -> bytes:
    """An error as the official SDKs raise it from a stream; begins a line even after half an event."""
    return b"\n\ndata: " + error.body() + b"\n\n"


def answer_event(status: int, body: bytes) -> bytes:
    """A pod's whole answer, come after the stream had begun: its OpenAI error as an event, or one of ours."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and document.get("error"):
        return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"
    return error_event(UpstreamFailed(f"The pod answered {status} and no stream of events."))
