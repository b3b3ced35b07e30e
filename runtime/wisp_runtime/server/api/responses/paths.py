"""Paths of the Responses API. Its modules are imported, and its store is made, at the first request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.server.http.first_request import imported
from wisp_runtime.server.service import Service

if TYPE_CHECKING:
    from wisp_runtime.server.api.responses.endpoints import ResponsesApi

PATH = "/v1/responses"
INPUT_TOKENS = f"{PATH}/input_tokens"
ROUTES = (
    (PATH, "POST", "create"),
    (INPUT_TOKENS, "POST", "input_tokens"),
    (f"{PATH}/{{id}}", "GET", "retrieve"),
    (f"{PATH}/{{id}}", "DELETE", "delete"),
    (f"{PATH}/{{id}}/cancel", "POST", "cancel"),
    (f"{PATH}/{{id}}/input_items", "GET", "input_items"),
)
"""Path, method, and name of the endpoint among the methods of ``ResponsesApi``."""

Endpoint = Callable[[Request], Awaitable[Response]]


class ResponsesPaths:
    """Endpoints of one service, which share one ``ResponsesApi``.

    Args:
        service: the served model.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._api: ResponsesApi | None = None

    def routes(self) -> list[tuple[str, str, Endpoint]]:
        """Return path, method and endpoint of each route."""
        return [(path, method, self._endpoint(name)) for path, method, name in ROUTES]

    def _endpoint(self, name: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            respond: Endpoint = getattr(await self._ready(), name)
            return await respond(request)

        return endpoint

    async def _ready(self) -> ResponsesApi:
        """Return the API; two first requests at once get the same one."""
        if self._api is None:
            module = await imported("wisp_runtime.server.api.responses.endpoints")
            self._api = self._api or module.ResponsesApi(self._service)
        return self._api
