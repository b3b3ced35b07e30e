"""Weights as numbers and scales: round-to-nearest of rows into FP8, INT8, INT4 and NVFP4.

Pure. A scale is rounded to the dtype in which it is stored before the numbers are divided by it, so that a
reader dequantizes exactly the nearest representable weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.rounding import E2M1_MAX, E4M3_MAX, from_e4m3, to_bf16, to_e2m1, to_e4m3

INT8_MAX = 127
INT4_MIN, INT4_MAX = -8, 7
INT4_REACH = 7.5
"""Largest magnitude of a group over its scale: half a step of one end is clipped, so that steps are finer."""

Encoded = tuple[Array, Array]
"""Numbers as they are stored, and their scales."""
RoundScale = Callable[[Array], Array]
"""Rounding of float32 scales to the dtype in which they are stored; the result is float32."""


def fp8_rows(rows: Array) -> Encoded:
    """Return E4M3 codes ``[R, K]`` uint8 of ``rows`` ``[R, K]`` and a scale a row, ``[R, 1]`` float32."""
    scales = _positive(np.abs(rows).max(axis=1, keepdims=True) / np.float32(E4M3_MAX))
    return to_e4m3(rows / scales), scales


def int8_rows(rows: Array) -> Encoded:
    """Return int8 ``[R, K]`` of ``rows`` ``[R, K]`` and a scale a row, ``[R, 1]`` float32."""
    scales = _positive(np.abs(rows).max(axis=1, keepdims=True) / np.float32(INT8_MAX))
    return np.clip(np.rint(rows / scales), -INT8_MAX, INT8_MAX).astype(np.int8), scales


def int4_groups(rows: Array, group: int, round_scale: RoundScale = to_bf16) -> Encoded:
    """Return words of eight nibbles along K, ``[R, K / 8]`` int32, and scales ``[R, K / group]`` float32.

    A nibble is the number plus 8.

    Args:
        rows: ``[R, K]`` float32, K a multiple of ``group``, that of 8.
        group: columns that share a scale.
        round_scale: rounding to the dtype in which scales are stored.
    """
    grouped = rows.reshape(len(rows), -1, group)
    scales = _positive(round_scale(np.abs(grouped).max(axis=2) / np.float32(INT4_REACH)))
    numbers = np.clip(np.rint(grouped / scales[..., None]), INT4_MIN, INT4_MAX)
    codes = (numbers.reshape(rows.shape) - INT4_MIN).astype(np.uint8)
    return nibble_pairs(codes).view(np.int32), scales


def nvfp4_groups(rows: Array, tensor_scale: float) -> Encoded:
    """Return pairs of E2M1 ``[R, K / 2]`` uint8 and E4M3 scales ``[R, K / 16]`` uint8.

    Args:
        rows: ``[R, K]`` float32, K a multiple of 16.
        tensor_scale: :func:`nvfp4_tensor_scale`; a group's scale is divided by it.
    """
    grouped = rows.reshape(len(rows), -1, 16)
    whole = np.float32(tensor_scale)
    stored = to_e4m3(np.abs(grouped).max(axis=2) / np.float32(E2M1_MAX) * whole)
    scales = (from_e4m3(stored) / whole)[..., None]
    numbers = np.divide(grouped, scales, out=np.zeros_like(grouped), where=scales > 0)
    return nibble_pairs(to_e2m1(numbers).reshape(rows.shape)), stored


def nvfp4_tensor_scale(largest: float) -> float:
    """Return the factor that maps the largest scale of a group to E4M3's largest, compressed-tensors' way.

    Args:
        largest: largest magnitude of the weights that share it.
    """
    return float(np.float32(E4M3_MAX * E2M1_MAX / largest)) if largest > 0 else 1.0


def nibble_pairs(codes: Array) -> Array:
    """Return codes below 16, ``[R, K]`` uint8, two in a byte, the even column low: ``[R, K / 2]``."""
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def _positive(scales: Array) -> Array:
    """Return scales with 1 in place of 0, which belongs to weights that are all zero."""
    return np.where(scales > 0, scales, np.float32(1))
