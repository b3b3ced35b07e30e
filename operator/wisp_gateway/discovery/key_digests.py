"""API keys as digests, the only form in which the gateway keeps them, each with its priority. Pure.

A digest is keyed with a secret of this process, so that the time of a look-up reveals nothing of the keys.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

# Priority of requests by digest of their key.
Keys = Mapping[bytes, str]

PRIORITIES = ("low", "normal", "high")
NORMAL = "normal"
_PROCESS_SECRET = secrets.token_bytes(32)


def parse_keys(text: str) -> dict[bytes, str]:
    """Parse keys, one ``NAME:KEY`` or ``KEY`` a line; ``#`` begins a comment."""
    lines = (line.strip() for line in text.splitlines())
    pairs = [_split(line) for line in lines if not line.startswith("#")]
    return {digest(key): priority_of(name) for name, key in pairs if key}


def priority_of(name: str) -> str:
    """Return the priority that a key's name ends in (``NAME.high``, ``NAME.low``), else normal."""
    ending = name.strip().rpartition(".")[2]
    return ending if ending in PRIORITIES and ending != name.strip() else NORMAL


def digest(key: str) -> bytes:
    """Digest of a key, different in every process."""
    return hashlib.blake2b(
        key.encode("utf-8", "surrogateescape"), key=_PROCESS_SECRET, digest_size=32
    ).digest()


def _split(line: str) -> tuple[str, str]:
    name, colon, key = line.partition(":")
    return (name, key.strip()) if colon else ("", line)
