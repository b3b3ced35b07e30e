"""HTTP routes of the API, admission, and errors in the API's format.

Health, state and metrics respond from the first moment; the API only once the model is ready.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wisp_http.base_url import meant_path
from wisp_runtime.server.api.chat import chat_completions
from wisp_runtime.server.api.completions import completions
from wisp_runtime.server.api.dialects import ANTHROPIC, dialect_of, error_response
from wisp_runtime.server.api.errors import ApiError, internal_error
from wisp_runtime.server.api.responses import paths as responses
from wisp_runtime.server.http.first_request import ServiceEndpoint, at_first_request, imported
from wisp_runtime.server.http.health import METRICS, health_endpoints
from wisp_runtime.server.http.request_id import with_request_id
from wisp_runtime.server.http.sse import ClientLeft
from wisp_runtime.server.http.usage_report import open_report, with_usage
from wisp_runtime.server.service import Service

log = logging.getLogger(__name__)

_API = "wisp_runtime.server.api"
_ANTHROPIC_MODELS = f"{_API}.anthropic.models"
_rerank = at_first_request(f"{_API}.scores", "rerank")
_score = at_first_request(f"{_API}.scores", "score")
_tokenize = at_first_request(f"{_API}.tokenization", "tokenize")
_detokenize = at_first_request(f"{_API}.tokenization", "detokenize")
ENDPOINTS: dict[str, ServiceEndpoint] = {
    "/v1/chat/completions": chat_completions,
    "/v1/completions": completions,
    "/v1/embeddings": at_first_request(f"{_API}.embeddings", "embeddings"),
    "/v1/score": _score,
    "/score": _score,
    "/v1/rerank": _rerank,
    "/rerank": _rerank,
    "/v2/rerank": _rerank,
    "/v1/messages": at_first_request(f"{_API}.anthropic.endpoints", "messages"),
    "/v1/messages/count_tokens": at_first_request(f"{_API}.anthropic.endpoints", "count_tokens"),
    "/v1/tokenize": _tokenize,
    "/v1/detokenize": _detokenize,
    "/tokenize": _tokenize,
    "/detokenize": _detokenize,
}
"""Paths that take ``POST``. Those outside ``/v1`` are as other servers have them."""
PATHS = (*ENDPOINTS, responses.PATH, responses.INPUT_TOKENS, "/v1/models")
OPENAPI = "/openapi.json"
CLIENT_LEFT = 499  # nginx's status for it; only the metrics show it
Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(service: Service) -> FastAPI:
    """Build the application around one model."""
    # Without FastAPI's pages: their scripts come from a public network that a cluster may not reach.
    app = FastAPI(title="Wisp runtime", openapi_url=None, redirect_slashes=False)
    _add_health(app, service)
    _add_api(app, service)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientLeft, _on_client_left)
    app.add_middleware(Admission, service=service)
    return app


def _add_health(app: FastAPI, service: Service) -> None:
    for path, respond in health_endpoints(service).items():
        endpoint = _with_experts(service, respond) if path == METRICS else _without_request(respond)
        app.add_route(path, endpoint, methods=["GET"])


def _without_request(respond: Callable[[], Response]) -> Endpoint:
    async def endpoint(_: Request) -> Response:
        return respond()

    return endpoint


def _with_experts(service: Service, respond: Callable[[], Response]) -> Endpoint:
    """Return the endpoint of metrics, which has the load of experts reported first."""

    async def endpoint(_: Request) -> Response:
        await service.engine.read_experts()
        return respond()

    return endpoint


def _add_api(app: FastAPI, service: Service) -> None:
    async def models(request: Request) -> Response:
        if dialect_of(request.scope) is ANTHROPIC:
            return JSONResponse((await imported(_ANTHROPIC_MODELS)).model_list(service, request.query_params))
        data = [_described(name, service) for name in service.config.names]
        return JSONResponse({"object": "list", "data": data})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        service.check_name(name)
        if dialect_of(request.scope) is ANTHROPIC:
            return JSONResponse((await imported(_ANTHROPIC_MODELS)).model_info(name, service))
        return JSONResponse(_described(name, service))

    app.add_route(OPENAPI, _OpenApi(service).respond, methods=["GET"])
    app.add_route("/v1/models", models, methods=["GET"])
    app.add_route("/v1/models/{name:path}", one_model, methods=["GET"])
    for path, respond in ENDPOINTS.items():
        app.add_route(path, partial(respond, service), methods=["POST"])
    by_path: dict[str, dict[str, Endpoint]] = {}
    for path, method, endpoint in responses.ResponsesPaths(service).routes():
        by_path.setdefault(path, {})[method] = endpoint
    for path, endpoints in by_path.items():
        app.add_route(path, _by_method(endpoints), methods=list(endpoints))


def _by_method(endpoints: Mapping[str, Endpoint]) -> Endpoint:
    """Return one endpoint for the methods of a path, so that a refusal names all of them."""

    async def endpoint(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


class _OpenApi:
    """The OpenAPI document, made once, at its first request: few ask for it, and it takes 0.2 s."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._making: asyncio.Task[bytes] | None = None

    async def respond(self, _: Request) -> Response:
        """Return the document; others wait for the one that is being made."""
        if self._making is None:
            self._making = asyncio.create_task(asyncio.to_thread(self._text))
        return Response(await asyncio.shield(self._making), media_type="application/json")

    def _text(self) -> bytes:
        from wisp_runtime.server.openapi.document import openapi_document

        return json.dumps(openapi_document(self._service.config.names)).encode()


def _described(name: str, service: Service) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created_s,
        "owned_by": "wisp",
        "max_model_len": service.info.max_context,
        **service.text.defaults.to_dict(service.info.eos_token_ids),
    }


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.scope)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path[:200]}"
    allowed = (error.headers or {}).get("Allow", "another")
    meant = meant_path(request.url.path)
    remedy = meant.remedy if meant else f"There are {', '.join(PATHS)} and /v1/models/NAME."
    messages = {
        HTTPStatus.NOT_FOUND: f"No such path: {where}. {remedy}",
        HTTPStatus.METHOD_NOT_ALLOWED: f"Method not allowed: {where}. The path takes {allowed}.",
    }
    codes = {HTTPStatus.NOT_FOUND: "unknown_path", HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed"}
    status = HTTPStatus(error.status_code)
    message, code = messages.get(status, str(error.detail)), codes.get(status)
    return error_response(ApiError(status, message, code=code, headers=error.headers), request.scope)


async def _on_client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


class Admission:
    """Let requests to the API in while the model is ready, and count them while they run.

    A request counts from the last byte of its body on, so that one whose body never comes delays no stop.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or not _is_api(scope["path"]):
            await self._app(scope, receive, send)
            return
        status, is_counted = CLIENT_LEFT, False
        id_headers = dialect_of(scope).id_headers
        open_report(scope)

        def count() -> None:
            nonlocal is_counted
            if not is_counted:
                is_counted = True
                self._service.enter()

        async def receive_and_count() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body") and not is_counted:
                self._service.admit()  # a stop may have begun meanwhile
                count()
            return message

        async def send_and_record(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            count()
            is_start = message["type"] == "http.response.start"
            await send(with_usage(with_request_id(message, scope, id_headers)) if is_start else message)

        try:
            await self._admit(scope, receive_and_count, send_and_record)
        except Exception as error:
            if status != CLIENT_LEFT:  # the response has begun and can only be broken off
                raise
            log.exception("%s %r failed by a bug of ours", scope["method"], scope["path"])
            await error_response(internal_error(error), scope)(scope, receive, send_and_record)
        finally:
            if is_counted:
                self._service.leave()
            self._service.telemetry.responses.add(path=_known_path(scope["path"]), status=str(status))

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._service.admit()
        except ApiError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_api(path: str) -> bool:
    return path.startswith("/v1") or path in ENDPOINTS


def _known_path(path: str) -> str:
    """Return a path that is ours, or ``other``: clients must not make up label values."""
    if path in PATHS:
        return path
    return f"{responses.PATH}/ID" if path.startswith(f"{responses.PATH}/") else "other"
