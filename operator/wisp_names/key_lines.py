"""Lines of API keys, ``NAME:KEY`` or ``KEY`` with limits after it, as the gateway reads them. Pure.

``wisp up`` warns by them of lines that open nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wisp_names.key_limits import UNLIMITED, KeyLimits, LimitError, split_limits

HASHED = "sha256:"
SHOWN_PROBLEMS = 5
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A line's key.

    Attributes:
        name: name of the key; empty: none.
        key: key, or ``sha256:`` and the digits of its hash; never empty.
        limits: limits of all requests with it.
    """

    name: str
    key: str
    limits: KeyLimits


def parse_key(name: str, text: str) -> KeyLine | None:
    """Parse ``KEY`` or ``sha256:HEX`` and its limits; None if there is no key.

    Raises:
        LimitError: its limits or its hash cannot be read, or it has limits and no name.
    """
    name = name.strip()
    key, limits = split_limits(text)
    if limits != UNLIMITED and not name:
        raise LimitError("a key with limits needs a name: NAME:KEY")
    if key.startswith(HASHED) and not _SHA256.fullmatch(key.removeprefix(HASHED)):
        raise LimitError("'sha256:' must be followed by the 64 hexadecimal digits of the key's SHA-256")
    return KeyLine(name, key, limits) if key else None


def split_lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the rest and the place of each line that is neither empty nor a comment."""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, key = line.partition(":")
        is_named = colon and not line.startswith(HASHED)  # a hashed key may have no name
        yield (name, key.strip(), f"line {number}") if is_named else ("", line, f"line {number}")


def read_lines(lines: Iterable[tuple[str, str, str]]) -> tuple[list[KeyLine], list[str]]:
    """Return the keys of lines, and place and error of each that cannot be read.

    Args:
        lines: name, rest and place of each, as :func:`split_lines` yields them.
    """
    keys: list[KeyLine] = []
    problems: list[str] = []
    for name, rest, where in lines:
        try:
            key = parse_key(name, rest)
        except LimitError as error:
            problems.append(f"{where}: {error}")
            continue
        keys += [key] if key is not None else []
    return keys, problems


def warning_of(place: str, problems: Sequence[str]) -> str:
    """Return the sentence on lines that cannot be read; empty: every line was.

    Args:
        place: source of the keys.
    """
    if not problems:
        return ""
    more = len(problems) - SHOWN_PROBLEMS
    shown = "; ".join(problems[:SHOWN_PROBLEMS]) + f"; and {more} more" * (more > 0)
    return f"{place}, {shown}. These keys open nothing until that is mended"
