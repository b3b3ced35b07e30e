"""Shapes of the gateway's own errors: each client gets that of the API that it speaks. Pure.

The path tells the API; of the models' paths, which two APIs have, the header that Anthropic's clients send.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from wisp_gateway.errors import GatewayError, Headers, UpstreamFailed
from wisp_http.base_url import meant_path

VERSION = b"anthropic-version"

# An error of a pod that is passed on as an event; a longer answer is none, and parsing it stops the loop.
MAX_ERROR_BYTES = 16 * 1024
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Dialect(Enum):
    """API of a path: OpenAI's; its Responses, whose events are typed; Anthropic's."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


def of_request(path: str, headers: Headers) -> Dialect:
    """Return the dialect of a request; OpenAI's for a path that is of no API.

    Of an unknown path that shows a wrong base URL, the dialect is that of the endpoint.
    """
    first = path.partition("/v1/")[2].partition("/")[0]
    if first not in ("messages", "responses", "models") and (meant := meant_path(path)) is not None:
        first = meant.endpoint.partition("/")[0]
    if first == "models" and any(name == VERSION for name, _ in headers):
        return Dialect.ANTHROPIC
    return {"messages": Dialect.ANTHROPIC, "responses": Dialect.RESPONSES}.get(first, Dialect.OPENAI)


def error_body(dialect: Dialect, error: GatewayError, request_id: str) -> bytes:
    """Write an error as a JSON body, on one line."""
    if dialect is not Dialect.ANTHROPIC:
        return error.body()
    body = {"type": _anthropic_type(error), "message": error.message}
    return _line({"type": "error", "error": body, "request_id": request_id or None})


def error_event(dialect: Dialect, error: GatewayError, request_id: str) -> bytes:
    """Write an error as the official SDKs raise it; starts on a new line even after a partial event."""
    return b"\n\n" + _event(dialect, json.loads(error_body(dialect, error, request_id)))


def answer_event(dialect: Dialect, status: int, body: bytes, request_id: str) -> bytes:
    """Write a pod's non-streamed answer for a client whose stream has begun: an error event."""
    try:
        document = json.loads(body) if len(body) <= MAX_ERROR_BYTES else None
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and document.get("error"):
        return _event(dialect, document)
    failed = UpstreamFailed(f"The pod answered {status} and no stream of events.")
    return error_event(dialect, failed, request_id)


def _event(dialect: Dialect, document: dict[str, Any]) -> bytes:
    """Write an error document as an event; a Responses client reads its fields at either level."""
    if dialect is Dialect.OPENAI:
        return b"data: " + _line(document) + b"\n\n"
    if dialect is Dialect.RESPONSES and isinstance(document["error"], dict):
        document = {**document["error"], "type": "error", "error": document["error"]}
    return b"event: error\ndata: " + _line(document) + b"\n\n"


def _anthropic_type(error: GatewayError) -> str:
    """Return the type of an error; clients try an ``overloaded_error`` again, and a final one not."""
    if error.is_final and error.status == 503:
        return "api_error"
    return _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()
