"""Durations (``90s``, ``1h30m``) and sizes (``24Gi``) as the API writes them.

Both stay the text the user wrote, so that what is parsed can be shown and compared with the CRD,
and carry their value: ``Duration("90s").seconds``, ``Quantity("24Gi").bytes``.
"""

from __future__ import annotations

import re

DURATION_PATTERN = r"^([1-9][0-9]{0,4}(ms|s|m|h)){1,3}$"
QUANTITY_PATTERN = r"^[1-9][0-9]{0,5}(Mi|Gi|Ti|M|G|T)$"

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {
    **{"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50},
    **{"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15},
}


class Duration(str):
    """A length of time: one to three numbers, each with ``ms``, ``s``, ``m`` or ``h``; never zero.

    Raises:
        ValueError: the text does not match :data:`DURATION_PATTERN`.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Duration:
        if not re.fullmatch(DURATION_PATTERN, text):
            raise ValueError(
                f"{text!r} is not a duration; write a number and ms, s, m or h, e.g. 90s or 1h30m"
            )
        return super().__new__(cls, text)

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return sum(int(n) * _SECONDS[unit] for n, unit in re.findall(r"(\d+)(ms|s|m|h)", self))


class Quantity(str):
    """A number of bytes: a whole number and ``Mi``, ``Gi``, ``Ti`` (or decimal ``M``, ``G``, ``T``).

    Raises:
        ValueError: the text does not match :data:`QUANTITY_PATTERN`.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Quantity:
        if not re.fullmatch(QUANTITY_PATTERN, text):
            raise ValueError(f"{text!r} is not a size; write a whole number and Mi, Gi or Ti, e.g. 24Gi")
        return super().__new__(cls, text)

    @property
    def bytes(self) -> int:
        """The size in bytes."""
        return bytes_of(self)


def bytes_of(text: str) -> int:
    """Read a whole number of bytes with any unit that the API server writes, e.g. ``24568812Ki``.

    Raises:
        ValueError: the text is something else.
    """
    match = re.fullmatch(r"(\d+)(m|[kMGTP]?|[KMGTP]i)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a number of bytes; it reads e.g. 24568812Ki")
    number, unit = int(match[1]), match[2]
    return number // 1000 if unit == "m" else number * _BYTES[unit]
