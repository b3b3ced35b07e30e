"""Limits of one API key as its line gives them: ``rpm=600 tpm=100000 concurrent=8 body=1MiB``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_AMOUNT = 10**12
_FIELDS = {
    "rpm": "requests_per_minute",
    "tpm": "tokens_per_minute",
    "concurrent": "concurrent",
    "body": "body_bytes",
}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "kib": 2**10, "mib": 2**20}
_AMOUNT = re.compile(r"([0-9]{1,12})(|k|m|kib|mib)", re.IGNORECASE)
_COUNT = re.compile(r"[0-9]{1,13}")
_FIELD = re.compile(r"(?P<name>[A-Za-z][A-Za-z_-]*)=(?P<value>\S*)")


class LimitError(ValueError):
    """A limit that cannot be read; names its field, never the key."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of one key; None: no limit.

    Attributes:
        requests_per_minute: requests in a minute, and at once after a minute's pause.
        tokens_per_minute: tokens of prompts and answers, in the same way.
        concurrent: requests that wait or run at the same time.
        body_bytes: size of a request's body.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    body_bytes: int | None = None


UNLIMITED = KeyLimits()


def split_limits(text: str) -> tuple[str, KeyLimits]:
    """Split ``KEY rpm=600 …`` into the key and its limits.

    Words at the end of the form ``name=value`` are limits; whatever precedes them is the key, which older
    lines may write with spaces.

    Raises:
        LimitError: a limit is unknown, given twice, or no integer (of ``body`` no size) from 1 to
            ``MAX_AMOUNT``.
    """
    words = text.split()
    count = next(
        (index for index, word in enumerate(reversed(words[1:])) if not _FIELD.fullmatch(word)),
        len(words) - 1,
    )
    if count <= 0:
        return text.strip(), UNLIMITED
    fields = words[-count:]
    return text.rsplit(maxsplit=count)[0].strip(), _limits(fields)


def _limits(words: Iterable[str]) -> KeyLimits:
    values: dict[str, int] = {}
    for position, word in enumerate(words, 1):
        name, _, value = word.partition("=")
        if name not in _FIELDS:
            raise LimitError(f"word {position} after the key is no limit; there are {', '.join(_FIELDS)}")
        if _FIELDS[name] in values:
            raise LimitError(f"{name!r} is given twice")
        values[_FIELDS[name]] = _amount(name, value)
    return KeyLimits(**values)


def _amount(name: str, text: str) -> int:
    match = _AMOUNT.fullmatch(text) if name == "body" else _COUNT.fullmatch(text)
    if match is None:
        form = "bytes such as 65536, 512KiB or 1MiB" if name == "body" else "an integer such as 600"
        raise LimitError(f"{name!r} must be {form}")
    amount = int(match[1]) * _UNITS[match[2].lower()] if name == "body" else int(text)
    if not 0 < amount <= MAX_AMOUNT:
        raise LimitError(f"{name!r} must be from 1 to {MAX_AMOUNT}")
    return amount
