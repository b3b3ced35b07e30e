"""Read a request's JSON body and check it against its model, with errors one can act on."""

from __future__ import annotations

import asyncio
import difflib
import json
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect

from wisp_runtime.server.api.errors import ApiError, bad_request
from wisp_runtime.server.http.sse import ClientLeft

MAX_BODY_BYTES = 16 << 20
LONG_BODY_BYTES = 1 << 18  # longer bodies are parsed in a thread: the event loop sends other requests' tokens

AnyModel = TypeVar("AnyModel", bound=BaseModel)


async def read_body(request: Request, model: type[AnyModel]) -> AnyModel:
    """Return the request's body as ``model``.

    Raises:
        ApiError: 413 too long, 415 no JSON by its type, 400 otherwise, naming the field or the position.
        ClientLeft: the connection closed before the body was complete.
    """
    _check_content_type(request.headers.get("content-type"))
    _check_content_encoding(request.headers.get("content-encoding"))
    data = await _read_bytes(request)
    if len(data) > LONG_BODY_BYTES:
        return await asyncio.to_thread(_parse, data, model)
    return _parse(data, model)


def _parse(data: bytes, model: type[AnyModel]) -> AnyModel:
    value = parse_json(data)
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_request")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False)[0], model) from error


def parse_json(data: bytes) -> Any:
    """Read strict JSON: UTF-8, and no NaN or Infinity.

    Raises:
        ApiError: 400 with the position of what is wrong.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        if b"\\ud" in data.lower():  # half of a surrogate pair is JSON, but no text
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise bad_request(
            f"The body is no text: {half} is half of a surrogate pair.", code="invalid_json"
        ) from error
    except UnicodeDecodeError as error:
        raise bad_request(
            f"The body is not UTF-8: byte {error.start} is invalid.", code="invalid_json"
        ) from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise bad_request(f"The body is not JSON: {error.msg} at {place}.", code="invalid_json") from error
    except (RecursionError, ValueError) as error:  # too deep, or a number of too many digits
        raise bad_request(f"The body cannot be read: {error}.", code="invalid_json") from error


def _refuse_constant(name: str) -> None:
    raise bad_request(f"The body is not JSON: {name} is no JSON number.", code="invalid_json")


def _check_content_type(value: str | None) -> None:
    kind = (value or "").split(";")[0].strip().lower()
    if kind != "application/json":
        actual = f"not {kind!r}" if kind else "and the request names none"
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The Content-Type must be application/json, {actual}.",
            code="unsupported_media_type",
        )


def _check_content_encoding(value: str | None) -> None:
    if value is not None and value.strip().lower() not in ("", "identity"):
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The Content-Encoding {value!r} is not read here; send the body as it is.",
            code="unsupported_content_encoding",
        )


async def _read_bytes(request: Request) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise _too_large()
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise ClientLeft from error
    return b"".join(chunks)


def _too_large() -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"The body is longer than {MAX_BODY_BYTES} bytes.",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def _explain(detail: ErrorDetails, model: type[BaseModel]) -> ApiError:
    """Return the first validation error as the API's error."""
    param = ".".join(map(str, detail["loc"]))
    match detail["type"]:
        case "extra_forbidden":
            known = list(model.model_fields) if len(detail["loc"]) == 1 else []
            close = difflib.get_close_matches(param, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            return bad_request(f"Unknown parameter: {param!r}.{hint}", param, "unknown_parameter")
        case "missing":
            return bad_request(f"Missing required parameter: {param!r}.", param, "missing_required_parameter")
        case "value_error":
            return bad_request(f"{detail['msg'].removeprefix('Value error, ')}", param, "invalid_value")
        case kind:
            code = "invalid_type" if kind.endswith("_type") else "invalid_value"
            return bad_request(f"Invalid {param!r}: {detail['msg']}.", param, code)
