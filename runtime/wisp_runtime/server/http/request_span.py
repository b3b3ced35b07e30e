"""Span of a request at the runtime, with its parts: queue, prefill and decode of its first sequence."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.types import Scope

from wisp_http.tracing import generation_attributes, usage_attributes
from wisp_runtime.server.http.request_id import id_of
from wisp_runtime.server.http.usage_report import UsageReport

if TYPE_CHECKING:
    from wisp_http.spans import Span, Tracer


def begin(tracer: Tracer, scope: Scope) -> Span:
    """Begin the span of a request."""
    attributes = {"http.request.method": scope["method"], "wisp.request.id": id_of(scope)}
    return tracer.begin(scope["method"], scope["headers"], time.monotonic(), attributes)


def end(span: Span, scope: Scope, model: str, status: int, report: UsageReport) -> None:
    """End the span of a request, with what became of it; a status of 500 or more is an error.

    Args:
        model: name of the model that is served.
        report: usage of its answer.
    """
    span.set({"http.response.status_code": status})
    if (counts := report.counts) is not None:
        span.set(generation_attributes(scope["path"], model), f"{scope['method']} {scope['path']}")
        span.set({"url.path": scope["path"], **usage_attributes(*counts)})
        for name, began_s, ended_s in report.phases():
            span.child(name, began_s, ended_s)
    if status >= 500:
        span.end(error=f"status {status}", kind=str(status))
    else:
        span.end()
