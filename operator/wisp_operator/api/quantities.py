"""Durations (``90s``, ``1h30m``), sizes (``24Gi``) and cores (``500m``) as the API writes them.

Each stays the text the user wrote, so that what is parsed can be shown and compared with the CRD,
and carries its value: ``Duration("90s").seconds``, ``Quantity("24Gi").bytes``, ``Cores("500m").millicores``.
"""

from __future__ import annotations

import re

DURATION_PATTERN = r"^([1-9][0-9]{0,4}(ms|s|m|h)){1,3}$"
QUANTITY_PATTERN = r"^[1-9][0-9]{0,5}(Mi|Gi|Ti|M|G|T)$"

CORES_PATTERN = r"^([1-9][0-9]{0,5}m|[1-9][0-9]{0,3}([.][1-9])?|0[.][1-9])$"

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


class Cores(str):
    """A number of CPU cores: whole or with one decimal, or thousandths with ``m``; a number in YAML will do.

    Raises:
        ValueError: the text does not match :data:`CORES_PATTERN`.
    """

    __slots__ = ()

    def __new__(cls, text: str | int) -> Cores:
        if not re.fullmatch(CORES_PATTERN, str(text)):
            raise ValueError(f"{text!r} is not a number of cores; write e.g. 500m, 2 or 1.5")
        return super().__new__(cls, text)

    @property
    def millicores(self) -> int:
        """The number in thousandths of a core."""
        return int(self[:-1]) if self.endswith("m") else round(float(self) * 1000)


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
