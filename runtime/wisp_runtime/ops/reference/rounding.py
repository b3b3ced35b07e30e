"""Rounding of float32 to E4M3, E2M1 and bf16 codes, to nearest, ties to even.

Integer arithmetic instead of ml_dtypes' casts: those hold the interpreter's lock, so threads would wait for
each other, and take three times as long for E4M3.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from wisp_runtime.batch import Array

E4M3_MAX = 448.0
E2M1_MAX = 6.0

_SIGN, _MAGNITUDE = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_E2M1_REBIAS = np.uint32((127 - 1) << 1)
_EXPONENT = np.uint32(0x7F800000)
_E4M3_SMALLEST_NORMAL = np.float32(2.0**-6)
_E4M3_REBIAS, _E4M3_NAN = np.uint32((127 - 7) << 3), np.uint32(0x7F)
_E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def to_e4m3(x: Array) -> Array:
    """Return the E4M3 codes of float32 ``x``, uint8 of its shape.

    Magnitudes above 448 become 448; NaN stays NaN.
    """
    magnitude = np.minimum(np.abs(x), np.float32(E4M3_MAX))
    bits = magnitude.view(np.uint32)
    codes = ((bits + np.uint32(0x7FFFF) + ((bits >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)).astype(
        np.uint32
    )
    codes -= _E4M3_REBIAS
    is_small = magnitude < _E4M3_SMALLEST_NORMAL
    codes[is_small] = np.rint(magnitude[is_small] * np.float32(512)).astype(np.uint32)
    np.minimum(codes, _E4M3_NAN, out=codes)  # only NaN's bits are above
    codes |= (x.view(np.uint32) & _SIGN) >> np.uint32(24)
    return codes.astype(np.uint8)


def from_e4m3(codes: Array) -> Array:
    """Return the float32 values of E4M3 ``codes``."""
    return _E4M3.take(codes)


def to_e2m1(x: Array) -> Array:
    """Return the E2M1 codes of ``x``, uint8 of its shape; magnitudes above 6 become 6."""
    values = round_e2m1(x)
    signs = np.signbit(values).view(np.uint8) << 3
    magnitude = np.abs(values, out=values)
    half = (magnitude == np.float32(0.5)).view(np.uint8)  # the only subnormal number
    bits = np.maximum(magnitude.view(np.uint32) >> np.uint32(22), _E2M1_REBIAS) - _E2M1_REBIAS
    return bits.astype(np.uint8) | half | signs


def round_e2m1(x: Array) -> Array:
    """Return ``x`` rounded to the values of E2M1, float32; magnitudes above 6 become 6."""
    magnitude = np.minimum(np.abs(x), np.float32(E2M1_MAX))
    steps = (magnitude.view(np.uint32) & _EXPONENT).view(np.float32)  # the power of two below
    np.maximum(steps, np.float32(1), out=steps)
    steps *= np.float32(0.75 * 2.0**23)  # added to it, the last bit of a float32 is half that power
    magnitude += steps
    magnitude -= steps
    return np.copysign(magnitude, x, out=magnitude)


def to_bf16(x: Array) -> Array:
    """Return ``x`` rounded to bf16, as float32."""
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)
