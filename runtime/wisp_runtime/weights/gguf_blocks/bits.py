"""Fields of blocks: scales in float16, and numbers of a few bits in their order.

Every function takes bytes ``[n, B]``, a row a block, and returns a new array.
"""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array


class ScaleInvalid(ValueError):
    """A scale that is not finite: the file is damaged."""


def half(blocks: Array, at: int) -> Array:
    """Return the float16 number at byte ``at``, as float32 ``[n, 1]``.

    Raises:
        ScaleInvalid: one is not finite.
    """
    return finite(np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16))


def finite(halves: Array) -> Array:
    """Return float16 numbers as float32.

    Raises:
        ScaleInvalid: one is not finite.
    """
    scales = halves.astype(np.float32)
    if not np.isfinite(scales).all():
        raise ScaleInvalid
    return scales


def words(raw: Array, dtype: type[np.uint16] | type[np.uint32]) -> Array:
    """Return bytes as little-endian words of ``dtype``, contiguous."""
    return np.ascontiguousarray(raw).view(dtype)


def fields(raw: Array, bits: int, run: int) -> Array:
    """Return the fields of ``bits`` bits of bytes, the lowest first, run by run: ``[n, B * 8 / bits]``.

    The first fields of ``run`` bytes come first, then their second ones; then the next ``run`` bytes.
    """
    count = 8 // bits
    runs = raw.reshape(len(raw), -1, 1, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, count, 1)
    return ((runs >> shifts) & np.uint8((1 << bits) - 1)).reshape(len(raw), -1)
