"""Health, state and metrics endpoints, and the bootstrap app that serves them until the API is imported."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from wisp_runtime.metrics import CONTENT_TYPE
from wisp_runtime.server.api.dialects import error_response
from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.service import Service

METRICS = "/metrics"


def health_endpoints(service: Service) -> dict[str, Callable[[], Response]]:
    """Return the endpoint of each path outside ``/v1``."""

    def livez() -> Response:
        return JSONResponse({"status": "alive"})

    def readyz() -> Response:
        is_ready = service.status == "ready"
        code = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": service.status, "phase": service.phase}, code)

    def state() -> Response:
        return JSONResponse(service.state(service.telemetry.rate.per_second(time.monotonic())))

    def metrics() -> Response:
        return PlainTextResponse(service.telemetry.registry.render(), media_type=CONTENT_TYPE)

    return {"/livez": livez, "/readyz": readyz, "/state": state, METRICS: metrics}


class BootstrapApp:
    """The application until pydantic is imported, which takes most of the server's start.

    Attributes:
        app: the API's application, once it has been imported.
    """

    def __init__(self, service: Service) -> None:
        self.app: ASGIApp | None = None
        self._service = service
        self._health = health_endpoints(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Delegate to the application, or serve health and refuse the rest."""
        respond = self.app or self._early_response(scope)
        await respond(scope, receive, send)

    def _early_response(self, scope: Scope) -> Response:
        if scope["path"] in self._health:
            return self._health[scope["path"]]()
        try:
            self._service.admit()
        except ApiError as error:
            return error_response(error, scope)
        raise AssertionError("the service is ready without an application")
