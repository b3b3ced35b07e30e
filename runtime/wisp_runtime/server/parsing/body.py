"""Read a request's JSON body and check it against its model, with errors one can act on."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from wisp_http.json_scan import JsonLimits, JsonRefused, JsonScan, JsonTooComplex
from wisp_runtime.server.api.errors import ApiError, bad_request
from wisp_runtime.server.http.sse import ClientLeft
from wisp_runtime.server.parsing.strict_model import build, is_built

MAX_LENGTH_DIGITS = 18
MAX_SHOWN_DIGITS = 40
MAX_BODY_BYTES = 8 << 20  # at most: less where the context is short, see body_limit
OTHER_FIELDS_BYTES = 1 << 20  # fields of a body besides its text
ESCAPED_CHAR_BYTES = 6  # a character written as \uXXXX
LONG_BODY_BYTES = 1 << 18  # longer bodies are parsed in a thread: the event loop sends other requests' tokens
EXPLAINED_BYTES = 1 << 16  # invalid JSON so short is parsed again, for the position
LIMITS = JsonLimits()  # lists of token ids have many numbers, but nothing has many strings
MAX_STRINGS = 32_768  # names of fields included; a parser takes ten times as long for one as for a number

AnyModel = TypeVar("AnyModel", bound=BaseModel)


def body_limit(max_context: int, longest_token_chars: int) -> int:
    """Return the maximum of bytes of a chat's body; no longer text fits the context, whatever its tokens."""
    text_bytes = max_context * longest_token_chars * ESCAPED_CHAR_BYTES
    return min(text_bytes + OTHER_FIELDS_BYTES, MAX_BODY_BYTES)


async def read_body(request: Request, model: type[AnyModel], max_bytes: int = MAX_BODY_BYTES) -> AnyModel:
    """Return the request's body as ``model``.

    Its depth and its numbers of values and objects are bounded before it is parsed: a parser in C stops every
    other request until it is done, also in a thread.

    Raises:
        ApiError: 413 too long, 415 no JSON by its type, 400 otherwise, naming the field or the position.
        ClientLeft: the connection closed before the body was complete.
    """
    _check_content_type(request.headers.get("content-type"))
    _check_content_encoding(request.headers.get("content-encoding"))
    data = await _read_bytes(request, max_bytes)
    if not is_built(model):
        await asyncio.to_thread(build, model)
    if len(data) > LONG_BODY_BYTES:
        return await asyncio.to_thread(parse_body, data, model)
    return parse_body(data, model)


def parse_body(data: bytes, model: type[AnyModel]) -> AnyModel:
    """Return the JSON text of a body as ``model``.

    Raises:
        ApiError: 400, naming the field or the position.
    """
    value = parse_json(data)
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_request")
    return checked(value, model)


def checked(value: dict[str, Any], model: type[AnyModel]) -> AnyModel:
    """Return the fields of a body as ``model``.

    Raises:
        ApiError: 400, naming the field.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False, include_input=False, include_context=False)
        raise _explain(first, model, value) from error


def parse_json(data: bytes) -> Any:
    """Read strict JSON: UTF-8, no NaN or Infinity, and no number that would be read as one of these.

    Raises:
        ApiError: 400 with the position of what is wrong.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, parse_float=finite)
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


def finite(text: str) -> float:
    """Return the number of a JSON text.

    Raises:
        ValueError: it is too large for one, and would be answered as ``Infinity``, which is no JSON.
    """
    if math.isinf(number := float(text)):
        shown = text if len(text) <= MAX_SHOWN_DIGITS else f"{text[:MAX_SHOWN_DIGITS]}…"
        raise ValueError(f"{shown} is too large for a finite number")
    return number


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


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and (len(declared) > MAX_LENGTH_DIGITS or int(declared) > max_bytes):
        raise _too_large(max_bytes)
    body = _BoundedBody(max_bytes)
    try:
        async for chunk in request.stream():
            body.add(chunk)
    except ClientDisconnect as error:
        raise ClientLeft from error
    return body.complete()


class _BoundedBody:
    """A body that is scanned while it arrives, and refused as soon as it is over a limit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._scan = JsonScan(LIMITS)
        self._refusal: JsonRefused | None = None

    def add(self, chunk: bytes) -> None:
        """Append the next bytes.

        Raises:
            ApiError: 413 too long, 400 too complex.
        """
        self._data += chunk
        if len(self._data) > self._max_bytes:
            raise _too_large(self._max_bytes)
        self._try(lambda: self._scan.feed(chunk))

    def complete(self) -> bytes:
        """Return the body. Of short ones that are no JSON objects, the parser finds the position."""
        self._try(self._scan.finish)
        data = bytes(self._data)
        if sum(field.strings for field in self._scan.fields.values()) > MAX_STRINGS:
            raise _too_complex(f"it has more than {MAX_STRINGS} strings")
        if self._refusal is not None and isinstance(parse_json(data), dict):
            raise _no_json(self._refusal)
        return data

    def _try(self, scan: Callable[[], object]) -> None:
        try:
            if self._refusal is None:
                scan()
        except JsonTooComplex as error:
            raise _too_complex(str(error)) from error
        except JsonRefused as error:
            self._refusal = error
        if self._refusal is not None and len(self._data) > EXPLAINED_BYTES:
            raise _no_json(self._refusal)


def _too_complex(reason: str) -> ApiError:
    return _unread(f"The body is too complex: {reason}.", "request_too_complex")


def _no_json(refusal: JsonRefused) -> ApiError:
    return _unread(f"The body is not JSON as it is read here: {refusal}.", "invalid_json")


def _unread(message: str, code: str) -> ApiError:
    """Refuse a body whose rest may not have come: the connection cannot serve another request."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, code=code, headers={"Connection": "close"})


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"The body is longer than {max_bytes} bytes.",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def _explain(detail: ErrorDetails, model: type[BaseModel], body: dict[str, Any]) -> ApiError:
    """Return the first validation error as the API's error."""
    from wisp_runtime.server.parsing.hints.wording import explained

    return explained(detail, _place_in(body, detail), model)


def _place_in(body: Any, detail: ErrorDetails) -> str:
    """Return the place of an error, dotted: only steps that the body has, since others name pydantic's types.

    Of a field that is missing, the last step is its name.
    """
    steps, value = list[str](), body
    *before, last = detail["loc"] or ("",)
    for step in before if detail["type"] == "missing" else detail["loc"]:
        is_key = isinstance(value, dict) and step in value
        if is_key or (isinstance(value, list) and isinstance(step, int) and step < len(value)):
            value = value[step]
            steps.append(str(step))
    return ".".join([*steps, str(last)] if detail["type"] == "missing" else steps)
