"""API dialects: the format of errors and the headers with a request's id, chosen by the request's path.

Of the paths that two APIs have, the header ``anthropic-version`` chooses, which Anthropic's clients send.

Errors are raised as :class:`ApiError` everywhere; the format is chosen where they are sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from wisp_http.base_url import meant_path
from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.http.request_id import HEADER, id_of

MESSAGES, MODELS = "/v1/messages", "/v1/models"
VERSION = b"anthropic-version"


@dataclass(frozen=True, slots=True)
class Dialect:
    """Conventions of one API.

    Attributes:
        error_body: JSON of an error, from it and the id of its request.
        error_event: name of the event with which a stream breaks off; empty: the event has no name.
        id_headers: headers of a response that carry the id of its request.
    """

    error_body: Callable[[ApiError, str], dict[str, Any]]
    error_event: str
    id_headers: tuple[bytes, ...]


def _anthropic_body(error: ApiError, request_id: str) -> dict[str, Any]:
    from wisp_runtime.server.api.anthropic.errors import error_body  # few start for Anthropic's clients

    return error_body(error, request_id)


OPENAI = Dialect(lambda error, _: error.body(), error_event="", id_headers=(HEADER,))
ANTHROPIC = Dialect(_anthropic_body, error_event="error", id_headers=(HEADER, b"request-id"))


def dialect_of(scope: Scope) -> Dialect:
    """Return the dialect of a request.

    Of an unknown path that shows a wrong base URL, it is that of the endpoint.
    """
    path: str = scope["path"]
    if not _is_below(MODELS, path) and (meant := meant_path(path)) is not None:
        path = f"/v1/{meant.endpoint}"
    if _is_below(MESSAGES, path):
        return ANTHROPIC
    is_shared = _is_below(MODELS, path)
    return ANTHROPIC if is_shared and any(name == VERSION for name, _ in scope["headers"]) else OPENAI


def error_response(error: ApiError, scope: Scope) -> Response:
    """Return an error as the client of a request expects it."""
    dialect, request_id = dialect_of(scope), id_of(scope)
    id_headers = {name.decode(): request_id for name in dialect.id_headers}
    return JSONResponse(
        dialect.error_body(error, request_id), error.status, headers=error.headers | id_headers
    )


def error_event(error: ApiError, scope: Scope) -> bytes:
    """Return an error as the last event of a stream that has begun."""
    dialect = dialect_of(scope)
    body = json.dumps(dialect.error_body(error, id_of(scope)), ensure_ascii=False, separators=(",", ":"))
    name = f"event: {dialect.error_event}\n" if dialect.error_event else ""
    return f"{name}data: {body}\n\n".encode()


def _is_below(path: str, asked: str) -> bool:
    return asked == path or asked.startswith(f"{path}/")
