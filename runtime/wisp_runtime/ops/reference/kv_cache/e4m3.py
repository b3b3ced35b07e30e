"""FP8: E4M3 numbers with a scale a layer."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from wisp_runtime.batch import Array

E4M3_MAX = 448.0

_VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def to_e4m3(values: Array) -> Array:
    """Round float32 to the nearest E4M3, ties to even, ±448 at most: ``[…]`` uint8.

    Subnormals are multiples of 2⁻⁹; NaN is 0x7F or 0xFF.
    """
    bounded = np.clip(values, -E4M3_MAX, E4M3_MAX)
    return bounded.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def from_e4m3(codes: Array) -> Array:
    """Return E4M3 numbers as float32."""
    return _VALUES.take(codes)


class Fp8:
    """A byte a channel: ``x = e4m3 · scale``, encoded as ``x · (1 / scale)``."""

    def encode(self, rows: Array, scale: float) -> tuple[Array, Array]:
        """See :class:`.codec.Codec`."""
        codes = to_e4m3(rows * (np.float32(1) / np.float32(scale)))
        return codes, np.empty((*codes.shape[:-1], 0), np.uint8)

    def decode(self, codes: Array, scales: Array, scale: float) -> Array:  # noqa: ARG002 (there are none)
        """See :class:`.codec.Codec`."""
        values = from_e4m3(codes)
        values *= np.float32(scale)
        return values
