"""Ids of requests: a client's ``x-request-id`` if it is a valid one, else a new one."""

from __future__ import annotations

import re
import uuid

HEADER = b"x-request-id"
_VALID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def id_of(given: bytes | None) -> str:
    """Return a request's id: the one that it brings, unless it is missing or might not be repeated safely."""
    if given is not None and _VALID.fullmatch(given):
        return given.decode()
    return f"req-{uuid.uuid4().hex}"
