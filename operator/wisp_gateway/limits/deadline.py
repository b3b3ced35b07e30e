"""Deadline of a request: ``x-request-timeout``, in seconds from its arrival. Pure."""

from __future__ import annotations

import re

from wisp_gateway.errors import BadRequest

HEADER = b"x-request-timeout"
MAX_TIMEOUT_S = 86_400.0
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")


def timeout_s(value: str) -> float | None:
    """Return the seconds of a header's value; None without one.

    Raises:
        BadRequest: it is no positive number of seconds.
    """
    if not value:
        return None
    seconds = float(value) if _SECONDS.fullmatch(value) else 0.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise BadRequest(
            f"The header x-request-timeout must be a number of seconds above 0, at most {MAX_TIMEOUT_S:.0f}, "
            f"such as 30 or 2.5, not {value[:40]!r}.",
            param=HEADER.decode(),
        )
    return seconds
