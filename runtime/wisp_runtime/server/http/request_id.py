"""Request ids: each response has ``x-request-id``, that of the request if it has a valid one, else a new one.

The gateway sends its own, so that both programs' logs have a request under one id.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Message, Scope

from wisp_http import request_ids

HEADER = request_ids.HEADER
_KEY = "wisp_request_id"  # of the id, in the ASGI scope


def id_of(scope: Scope) -> str:
    """Return the id of a request, the same at each call."""
    if _KEY not in scope:
        given = next((value for name, value in scope["headers"] if name == HEADER), None)
        scope[_KEY] = request_ids.id_of(given)
    known: str = scope[_KEY]
    return known


def with_request_id(message: Message, scope: Scope, names: Sequence[bytes] = (HEADER,)) -> Message:
    """Return the start of a response with the id of its request.

    Args:
        message: start of the response.
        scope: its request.
        names: headers that carry the id.
    """
    others = [header for header in message.get("headers", ()) if header[0] not in names]
    return {**message, "headers": [*others, *((name, id_of(scope).encode()) for name in names)]}
