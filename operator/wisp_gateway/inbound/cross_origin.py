"""Cross-origin requests: web pages of the origins in ``--allow-origin`` may call the gateway from a browser.

Pure. Off by default: without an origin a preflight is refused (405), and no answer has a header of CORS
(https://fetch.spec.whatwg.org/#http-cors-protocol). Keys travel in headers of their own, never in cookies,
so credentials are not allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from wisp_gateway.config import ANY_ORIGIN, ORIGIN
from wisp_gateway.errors import Headers
from wisp_gateway.limits.headers import ANTHROPIC_NAMES, OPENAI_NAMES

MAX_AGE_S = 600
_OWN = ("x-request-id", "request-id", "retry-after", "retry-after-ms", "x-should-retry")
_EXPOSED = ", ".join((*_OWN, *OPENAI_NAMES, *ANTHROPIC_NAMES)).encode()
_HEADER_NAMES = re.compile(r"[A-Za-z0-9, _-]{0,2048}")


class AllowedOrigins:
    """Origins whose pages may read answers.

    Args:
        origins: origins such as ``https://chat.example.com``, or ``*`` for every one.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def allows(self, origin: str) -> bool:
        """Return whether a page of ``origin`` may call, and read answers."""
        return ORIGIN.fullmatch(origin) is not None and not self._origins.isdisjoint({origin, ANY_ORIGIN})

    def headers(self, origin: str) -> Headers:
        """Return the headers of an answer to a page of ``origin``; none if it is not allowed."""
        if not self._origins:
            return []
        vary = (b"vary", b"origin")
        if not self.allows(origin):
            return [vary]
        allowed = (b"access-control-allow-origin", origin.encode())
        return [allowed, (b"access-control-expose-headers", _EXPOSED), vary]

    def preflight(self, method: str, origin: str, asked_method: str, asked_headers: str) -> Headers | None:
        """Return the headers of the answer to a preflight; None if the request is none, or not allowed.

        Args:
            asked_method: value of ``access-control-request-method``.
            asked_headers: value of ``access-control-request-headers``; the SDKs send many.
        """
        if method != "OPTIONS" or not asked_method or not self.allows(origin):
            return None
        names = asked_headers if _HEADER_NAMES.fullmatch(asked_headers) else "authorization, content-type"
        return [
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-allow-headers", names.encode()),
            (b"access-control-max-age", str(MAX_AGE_S).encode()),
        ]
