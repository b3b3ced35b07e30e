"""W3C trace context: the headers by which a request names the trace that it is a part of."""

from __future__ import annotations

import re

Headers = list[tuple[bytes, bytes]]
TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})
MAX_CONTEXTS = 4  # that one report names of a model
_CONTEXT = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][13579bdf]")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def trace_of(headers: Headers) -> str | None:
    """Return the trace that a request belongs to already, if its ``traceparent`` is one."""
    given = next((value for name, value in headers if name == b"traceparent"), b"")
    match = _TRACEPARENT.fullmatch(given)
    return match[1].decode() if match else None


def is_context(text: object) -> bool:
    """Return whether ``text`` is a ``traceparent`` (version 00) of a request whose spans are kept."""
    return isinstance(text, str) and _CONTEXT.fullmatch(text) is not None


def context_of(headers: Headers) -> str:
    """Return the ``traceparent`` of headers; empty if there is none, or if its trace's spans are not kept."""
    given = next((value.decode("latin-1") for name, value in headers if name == b"traceparent"), "")
    return given if is_context(given) else ""
