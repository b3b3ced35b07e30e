"""Access log of the runtime: one record an answered request, with its id and no word of prompt or answer.

The outermost application, so that refused requests are logged too, and so that each record of the log that
is written while a request is served has its id.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wisp_http.log_lines import FIELDS, request_id
from wisp_runtime.server.http.request_id import id_of
from wisp_runtime.server.http.usage_report import current

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
    """

    def __init__(self, app: ASGIApp, model: str) -> None:
        self._app = app
        self._model = model

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
        try:
            await self._app(scope, receive, send_and_keep_status)
        finally:
            self._record(scope, status, time.monotonic() - entered_s)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        fields: dict[str, Any] = {
            "request": id_of(scope),
            "method": scope["method"],
            "path": scope["raw_path"][:MAX_LOGGED_PATH].decode("latin-1"),
            "model": self._model,
            "status": status,
            "seconds": round(seconds, 6),
            **current().fields(),
        }
        log.info("answered", extra={FIELDS: fields})
