"""Fields of blocks: scales in float16, and numbers of a few bits in their order.

Every function takes bytes ``[n, B]``, a row a block, and returns a new array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_runtime.batch import Array


@dataclass(frozen=True, slots=True)
class ScaledCodes:
    """The weights of n blocks, ``codes * scales + minima``; each scale is of an equal run of codes.

    Attributes:
        codes: ``[n, W]`` int8.
        scales: ``[n, P]`` float32.
        minima: ``[n, P]`` float32; None: there are none.
    """

    codes: Array
    scales: Array
    minima: Array | None = None

    def weights(self) -> Array:
        """Return the weights ``[n, W]``, float32."""
        runs = self.codes.astype(np.float32).reshape(*self.scales.shape, -1)
        runs *= self.scales[:, :, None]
        if self.minima is not None:
            runs += self.minima[:, :, None]
        return runs.reshape(self.codes.shape)


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
