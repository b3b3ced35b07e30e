"""API keys as digests, the only form in which the gateway keeps them, each with its name and limits. Pure.

A digest is keyed with a secret of this process, so that the time of a look-up reveals nothing of the keys.
It is made of a key's SHA-256, which a line may give instead of the key: one look-up finds both.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wisp_names.key_limits import UNLIMITED, KeyLimits
from wisp_names.key_lines import HASHED, KeyLine, read_lines, split_lines, warning_of

PRIORITIES = ("low", "normal", "high")
NORMAL = "normal"
_PROCESS_SECRET = secrets.token_bytes(32)


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


class ParsedKeys:
    """Keys of one file or Secret, and the lines of it that cannot be read.

    Such a line opens nothing: a key that should have limits never runs without them.

    Args:
        lines: name, rest and place of each line.
        source: source of the keys, as limits count by it.
        place: source as the log names it.

    Attributes:
        keys: keys that were read.
        problems: place and error of each line that was not.
    """

    def __init__(self, lines: Iterable[tuple[str, str, str]], source: str, place: str) -> None:
        read, self.problems = read_lines(lines)
        self.keys = {_digest_of(line.key): _key_of(line, source) for line in read}
        self._place = place

    @property
    def warning(self) -> str:
        """Line for the log; empty: every line was read."""
        return warning_of(self._place, self.problems)


def parse_keys(text: str, source: str = "") -> ParsedKeys:
    """Parse keys, one ``NAME:KEY`` or ``KEY`` a line, limits after it; ``#`` begins a comment."""
    return ParsedKeys(split_lines(text), source, source or "API keys")


def priority_of(name: str) -> str:
    """Return the priority that a key's name ends in (``NAME.high``, ``NAME.low``), else normal."""
    ending = name.strip().rpartition(".")[2]
    return ending if ending in PRIORITIES and ending != name.strip() else NORMAL


def digest(key: str) -> bytes:
    """Digest of a key, different in every process."""
    return _keyed(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest())


def _key_of(line: KeyLine, source: str) -> Key:
    return Key(line.name, priority_of(line.name), line.limits, source)


def _digest_of(key: str) -> bytes:
    """Digest of a line's key, or of the key whose hash it has."""
    return _keyed(bytes.fromhex(key.removeprefix(HASHED))) if key.startswith(HASHED) else digest(key)


def _keyed(sha256: bytes) -> bytes:
    return hashlib.blake2b(sha256, key=_PROCESS_SECRET, digest_size=32).digest()
