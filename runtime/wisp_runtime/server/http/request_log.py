"""Access log and spans of the runtime: a record a request, with its id and no word of prompt or answer.

The outermost application, so that refused requests are logged too, and so that each record of the log that
is written while a request is served has its id.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wisp_http.log_lines import FIELDS, request_id
from wisp_http.trace_context import trace_of
from wisp_runtime.server.http import request_span
from wisp_runtime.server.http.request_id import id_of
from wisp_runtime.server.http.usage_report import current

if TYPE_CHECKING:
    from wisp_http.spans import Tracer

PROBES = frozenset({"/livez", "/readyz", "/metrics", "/state"})
"""Paths that others poll; they are not logged."""
CLIENT_LEFT = 499
MAX_LOGGED_PATH = 300
log = logging.getLogger("wisp_runtime.access")


class RequestLog:
    """Logs the requests of an application.

    Args:
        app: the application.
        model: name of the model that is served.
        tracer: maker of their spans, or None.
    """

    def __init__(self, app: ASGIApp, model: str, tracer: Tracer | None = None) -> None:
        self._app = app
        self._model = model
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and log it at the end of its answer."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        status, entered_s = CLIENT_LEFT, time.monotonic()

        async def send_and_keep_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        request_id.set(id_of(scope))
        span = request_span.begin(self._tracer, scope) if self._tracer is not None else None
        try:
            await self._app(scope, receive, send_and_keep_status)
        finally:
            trace = span.trace if span is not None else trace_of(scope["headers"])
            self._record(scope, status, time.monotonic() - entered_s, trace)
            if span is not None:
                request_span.end(span, scope, self._model, status, current())

    def _record(self, scope: Scope, status: int, seconds: float, trace: str | None) -> None:
        fields: dict[str, Any] = {
            "request": id_of(scope),
            "method": scope["method"],
            "path": scope["raw_path"][:MAX_LOGGED_PATH].decode("latin-1"),
            "model": self._model,
            "status": status,
            "seconds": round(seconds, 6),
            **current().fields(),
            "trace": trace,
        }
        log.info("answered", extra={FIELDS: fields})
