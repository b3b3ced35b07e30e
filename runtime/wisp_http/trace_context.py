"""W3C trace context: the headers by which a request names the trace that it is a part of."""

from __future__ import annotations

import re

Headers = list[tuple[bytes, bytes]]
TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def trace_of(headers: Headers) -> str | None:
    """Return the trace that a request belongs to already, if its ``traceparent`` is one."""
    given = next((value for name, value in headers if name == b"traceparent"), b"")
    match = _TRACEPARENT.fullmatch(given)
    return match[1].decode() if match else None
