"""API keys as digests, the only form in which the gateway keeps them. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence


def parse_keys(text: str) -> list[str]:
    """Parse keys, one ``name:key`` or ``key`` a line; ``#`` begins a comment."""
    lines = (line.strip() for line in text.splitlines())
    keys = (line[line.find(":") + 1 :].strip() for line in lines if line and not line.startswith("#"))
    return [key for key in keys if key]


def is_among(token: str, digests: Sequence[bytes]) -> bool:
    """Return True if ``token`` has one of these digests; takes the same time for every token."""
    given = digest(token)
    matches = [hmac.compare_digest(given, known) for known in digests]
    return bool(token) and any(matches)


def digest(key: str) -> bytes:
    """SHA-256 of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
