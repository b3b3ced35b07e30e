"""Read and write amounts of bytes: ``512MiB``, ``24Gi``, ``17.1 GiB``; write numbers of things.

Both families of units are read (``K M G T`` with or without ``B`` are powers of 1000, ``Ki Mi Gi Ti`` of
1024, as in Kubernetes quantities); only the binary ones are written.
"""

from __future__ import annotations

import re
from decimal import Decimal

from wisp_plan.errors import SizeInvalid

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_PATTERN = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE)
_WRITTEN = (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))


def parse_size(text: str) -> int:
    """Read an amount of bytes, rounded down to an integer.

    Args:
        text: a number with an optional unit; without one it is bytes. Units are not case-sensitive.

    Raises:
        SizeInvalid: the text is neither.
    """
    match = _PATTERN.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise SizeInvalid(f"'{text}' is not an amount of bytes. Write for example 512MiB, 24Gi or 17.1GiB.")
    base = 1024 if match[3] else 1000
    return int(Decimal(match[1]) * base ** _POWERS[match[2].lower()])


def counted(number: int, noun: str) -> str:
    """Write a number of things: ``1 sequence``, ``8 sequences``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_size(size_bytes: int) -> str:
    """Write an amount of bytes with one decimal in the largest binary unit it fills: ``17.1 GiB``."""
    sign, size = ("-" if size_bytes < 0 else ""), abs(size_bytes)
    for unit, scale in _WRITTEN:
        if size >= scale:
            return f"{sign}{size / scale:.1f} {unit}"
    return f"{sign}{size} B"
