"""API keys as digests, the only form in which the gateway keeps them, each with its name and limits. Pure.

A digest is keyed with a secret of this process, so that the time of a look-up reveals nothing of the keys.
It is made of a key's SHA-256, which a line may give instead of the key: one look-up finds both.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from wisp_gateway.limits.key_limits import UNLIMITED, KeyLimits, LimitError, split_limits

log = logging.getLogger(__name__)

PRIORITIES = ("low", "normal", "high")
NORMAL = "normal"
_PROCESS_SECRET = secrets.token_bytes(32)
_HASHED = "sha256:"
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")


@dataclass(frozen=True, slots=True)
class Key:
    """An API key without its text.

    Attributes:
        name: name of its line, or of its value in a Secret; empty: none.
        priority: priority of its requests.
        limits: limits of all of its requests together.
        source: file or Secret that has it.
    """

    name: str = ""
    priority: str = NORMAL
    limits: KeyLimits = UNLIMITED
    source: str = ""

    @property
    def limited_as(self) -> str:
        """Name under which its use is limited: two lines of one name, an old and a new key, share it."""
        return f"{self.source}:{self.name}"


NO_KEY = Key()
Keys = Mapping[bytes, Key]
"""Keys by their digest."""


def parse_keys(text: str, source: str = "") -> dict[bytes, Key]:
    """Parse keys, one ``NAME:KEY`` or ``KEY`` a line, limits after it; ``#`` begins a comment.

    A line that cannot be read opens nothing: a key that should have limits never runs without them.
    """
    keys: dict[bytes, Key] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.strip().startswith("#"):
            name, key = _split(line.strip())
            keys |= parse_key(name, key, source, where=f"{source or 'API keys'}, line {number}")
    return keys


def parse_key(name: str, text: str, source: str, *, where: str) -> dict[bytes, Key]:
    """Parse ``KEY`` or ``sha256:HEX`` and its limits; empty, and a line in the log, if it cannot be read."""
    name = name.strip()
    try:
        key, limits = split_limits(text)
        if limits != UNLIMITED and not name:
            raise LimitError("a key with limits needs a name: NAME:KEY")
        given = _digest_of_hex(key) if key.startswith(_HASHED) else digest(key)
    except LimitError as error:
        log.warning("%s: %s; this key opens nothing until that is mended", where, error)
        return {}
    return {given: Key(name, priority_of(name), limits, source)} if key else {}


def priority_of(name: str) -> str:
    """Return the priority that a key's name ends in (``NAME.high``, ``NAME.low``), else normal."""
    ending = name.strip().rpartition(".")[2]
    return ending if ending in PRIORITIES and ending != name.strip() else NORMAL


def digest(key: str) -> bytes:
    """Digest of a key, different in every process."""
    return _keyed(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest())


def _digest_of_hex(text: str) -> bytes:
    hexadecimal = text.removeprefix(_HASHED)
    if not _SHA256.fullmatch(hexadecimal):
        raise LimitError("'sha256:' must be followed by the 64 hexadecimal digits of the key's SHA-256")
    return _keyed(bytes.fromhex(hexadecimal))


def _keyed(sha256: bytes) -> bytes:
    return hashlib.blake2b(sha256, key=_PROCESS_SECRET, digest_size=32).digest()


def _split(line: str) -> tuple[str, str]:
    name, colon, key = line.partition(":")
    if not colon or line.startswith(_HASHED):  # a hashed key without a name
        return "", line
    return name, key.strip()
