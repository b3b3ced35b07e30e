"""Headers with the rest of a key's limits, as OpenAI's and Anthropic's servers write them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from wisp_gateway.errors import Headers
from wisp_gateway.limits.limiter import Quota

KINDS = ("requests", "tokens")
FIELDS = ("limit", "remaining", "reset")
OPENAI_NAMES = tuple(f"x-ratelimit-{field}-{kind}" for kind in KINDS for field in FIELDS)
ANTHROPIC_NAMES = tuple(f"anthropic-ratelimit-{kind}-{field}" for kind in KINDS for field in FIELDS)


def openai_headers(quotas: Mapping[str, Quota]) -> Headers:
    """Return ``x-ratelimit-limit-requests`` and its like; a reset is a duration: ``6m0s``, ``120ms``."""
    return [
        (f"x-ratelimit-{field}-{kind}".encode(), text.encode())
        for kind, quota in quotas.items()
        for field, text in zip(FIELDS, _texts(quota, duration(quota.reset_s)), strict=True)
    ]


def anthropic_headers(quotas: Mapping[str, Quota], wall_s: float) -> Headers:
    """Return ``anthropic-ratelimit-requests-limit`` and its like; a reset is a date (RFC 3339)."""
    return [
        (f"anthropic-ratelimit-{kind}-{field}".encode(), text.encode())
        for kind, quota in quotas.items()
        for field, text in zip(FIELDS, _texts(quota, _date(wall_s + quota.reset_s)), strict=True)
    ]


def duration(seconds: float) -> str:
    """Write a duration in whole milliseconds below a second, else in whole seconds; rounded up."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _texts(quota: Quota, reset: str) -> tuple[str, str, str]:
    return str(quota.limit), str(quota.remaining), reset


def _date(wall_s: float) -> str:
    return datetime.fromtimestamp(math.ceil(wall_s), UTC).isoformat().replace("+00:00", "Z")
