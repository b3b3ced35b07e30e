"""Errors in the format of Anthropic's API."""

from __future__ import annotations

from typing import Any

from wisp_runtime.server.api.errors import ApiError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return ``{"type": "error", "error": {type, message, details}, "request_id"}``.

    The message names the field; ``details`` has the code, if the error has one.
    """
    fallback = "api_error" if error.status >= 500 else "invalid_request_error"
    message = error.message
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # agents shorten the conversation when they read it
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    body: dict[str, Any] = {"type": _TYPES.get(error.status, fallback), "message": message}
    if error.code is not None:
        body["details"] = {"error_code": error.code}
    return {"type": "error", "error": body, "request_id": request_id}
