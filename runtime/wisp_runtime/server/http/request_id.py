"""Request ids: each response of ``/v1`` has ``x-request-id``, that of the request if it has a valid one.

The gateway sends its own, under which its log has the request; without a gateway the id of the completion,
or a new one, tells responses and lines of the log apart.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

from starlette.types import Message, Scope

HEADER = b"x-request-id"
_VALID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_KEY = "wisp_request_id"  # of the scope


def given_id(scope: Scope) -> bytes | None:
    """Return the id that a request brings; None if it has none, or one that may not be repeated."""
    given = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return given if _VALID.fullmatch(given) else None


def id_of(scope: Scope) -> str:
    """Return the id that a request brings, else a new one, the same at each call."""
    if _KEY not in scope:
        scope[_KEY] = (given_id(scope) or f"req-{uuid.uuid4().hex}".encode()).decode()
    known: str = scope[_KEY]
    return known


def with_request_id(message: Message, scope: Scope, names: Sequence[bytes] = (HEADER,)) -> Message:
    """Return the start of a response with the id of its request, else its own, else a new one.

    Args:
        message: start of the response.
        scope: its request.
        names: headers that carry the id.
    """
    headers = list(message.get("headers", ()))
    own = next((value for name, value in headers if name == HEADER), None)
    chosen = given_id(scope) or own or id_of(scope).encode()
    others = [header for header in headers if header[0] not in names]
    return {**message, "headers": [*others, *((name, chosen) for name in names)]}
