"""Refusals by a key's limits; part of the tree in :mod:`wisp_gateway.errors`."""

from __future__ import annotations

import math

from wisp_gateway.errors import GatewayError, Headers


class RateLimited(GatewayError):
    """A key's limit of requests: a minute, or at once.

    Args:
        limit: name of the limit, as a key's line has it.
        wait_s: time until a request would be taken.
    """

    status, type, code = 429, "requests", "rate_limit_exceeded"

    def __init__(self, message: str, *, limit: str, wait_s: float) -> None:
        super().__init__(message, retry_after_s=max(1, math.ceil(wait_s)))
        self.limit = limit
        self._wait_ms = max(1, math.ceil(wait_s * 1000))

    def headers(self) -> Headers:
        """Add the wait in milliseconds, which OpenAI's clients prefer to whole seconds."""
        return [*super().headers(), (b"retry-after-ms", str(self._wait_ms).encode())]


class TokensLimited(RateLimited):
    """A key's limit of tokens a minute."""

    type = "tokens"
