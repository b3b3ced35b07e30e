"""Span of a client's request, with its parts: receive, queue, and (:mod:`..upstream`) each try at a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wisp_gateway.inbound.access_log import PROBES
from wisp_gateway.inbound.client import Client
from wisp_http.tracing import generation_attributes, usage_attributes

if TYPE_CHECKING:
    from wisp_http.spans import Span, Tracer


def begin(tracer: Tracer, client: Client) -> None:
    """Begin the span of a request; probes have none."""
    if client.path not in PROBES:
        attributes = {"http.request.method": client.method, "wisp.request.id": client.request_id}
        client.span = tracer.begin(client.method, client.headers, client.entered_s, attributes)


def end(client: Client) -> None:
    """End the span of a request, with its outcome; a status of 500 or more is an error."""
    span, received_s = client.span, client.received_s
    if span is None:
        return
    if received_s is not None:
        span.child("receive", client.entered_s, received_s)
        if client.waited_for_wake is not None:
            _end_queue(span, client, received_s)
    span.set({"http.response.status_code": client.status})
    if client.model_key:  # the path is one of ours: any other must not name a span
        span.set(generation_attributes(client.path, client.model_key), f"{client.method} {client.path}")
        span.set({"url.path": client.path})
    if client.key_name:
        span.set({"wisp.key.name": client.key_name})
    if (usage := client.usage) is not None:
        span.set(
            usage_attributes(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.finish)
        )
    if client.status >= 500:
        span.end(error=f"status {client.status}", kind=str(client.status))
    else:
        span.end()


def _end_queue(span: Span, client: Client, received_s: float) -> None:
    """Add the span of its wait: until a pod had a place, or to its end if none had."""
    queue = span.child("queue", received_s, attributes={"wisp.waited_for_wake": bool(client.waited_for_wake)})
    if client.wake_trace and span.trace not in client.wake_trace:
        queue.link(client.wake_trace)
    queue.end(None if client.queue_s is None else max(received_s, client.entered_s + client.queue_s))
