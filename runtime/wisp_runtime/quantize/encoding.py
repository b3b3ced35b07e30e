"""Weights as numbers and scales: round-to-nearest of rows into FP8, INT8, INT4 and NVFP4.

Pure. A scale is rounded to the dtype in which it is stored before the numbers are divided by it, so that a
reader dequantizes exactly the nearest representable weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.rounding import (
    E2M1_MAX,
    E4M3_MAX,
    from_e4m3,
    round_e2m1,
    to_bf16,
    to_e2m1,
    to_e4m3,
)

INT8_MAX = 127
INT4_MIN, INT4_MAX = -8, 7
INT4_REACH = 7.5
"""Largest magnitude of a group over its scale: half a step of one end is clipped, so that steps are finer."""
INT4_REACHES = (7.0, 7.5, 8.0, 8.5, 9.0, 9.75, 10.5, 11.5)
NVFP4_REACHES = (6.0, 4.0, 4.5, 5.0, 5.5, 6.75, 7.5)
"""Reaches that a search tries: at 4 the largest of a group meets E2M1's denser numbers."""

Encoded = tuple[Array, Array]
"""Numbers as they are stored, and their scales."""
Grouped = tuple[Array, Array, Array]
"""Numbers ``[R, K / group, group]`` float32, scales of groups as they are stored, and in float32."""
RoundScale = Callable[[Array], Array]
"""Rounding of float32 scales to the dtype in which they are stored; the result is float32."""


def fp8_rows(rows: Array, _importance: Array | None = None) -> Encoded:
    """Return E4M3 codes ``[R, K]`` uint8 of ``rows`` ``[R, K]`` and a scale a row, ``[R, 1]`` float32."""
    scales = _positive(np.abs(rows).max(axis=1, keepdims=True) / np.float32(E4M3_MAX))
    return to_e4m3(rows / scales), scales


def int8_rows(rows: Array, _importance: Array | None = None) -> Encoded:
    """Return int8 ``[R, K]`` of ``rows`` ``[R, K]`` and a scale a row, ``[R, 1]`` float32."""
    scales = _positive(np.abs(rows).max(axis=1, keepdims=True) / np.float32(INT8_MAX))
    return np.clip(np.rint(rows / scales), -INT8_MAX, INT8_MAX).astype(np.int8), scales


def int4_groups(
    rows: Array, importance: Array | None = None, *, group: int, round_scale: RoundScale = to_bf16
) -> Encoded:
    """Return words of eight nibbles along K, ``[R, K / 8]`` int32, and scales ``[R, K / group]`` float32.

    A nibble is the number plus 8.

    Args:
        rows: ``[R, K]`` float32, K a multiple of ``group``, that of 8.
        importance: ``[K]``, weight of each column's squared error; None: the scale is the plain one.
        group: columns that share a scale.
        round_scale: rounding to the dtype in which scales are stored.
    """
    numbers, scales = _int4_numbers(rows, importance, group, round_scale)
    codes = (numbers.reshape(rows.shape) - INT4_MIN).astype(np.uint8)
    return nibble_pairs(codes).view(np.int32), scales


def nvfp4_groups(rows: Array, importance: Array | None = None, *, tensor_scale: float) -> Encoded:
    """Return pairs of E2M1 ``[R, K / 2]`` uint8 and E4M3 scales ``[R, K / 16]`` uint8.

    Args:
        rows: ``[R, K]`` float32, K a multiple of 16.
        importance: weights of errors, see :func:`int4_groups`.
        tensor_scale: :func:`nvfp4_tensor_scale`; a group's scale is divided by it.
    """
    numbers, stored, _ = _nvfp4_numbers(rows, importance, tensor_scale)
    return nibble_pairs(to_e2m1(numbers.reshape(rows.shape))), stored


def fp8_values(rows: Array, _importance: Array | None = None) -> Array:
    """Return the weights that :func:`fp8_rows` stands for."""
    codes, scales = fp8_rows(rows)
    return from_e4m3(codes) * scales


def int8_values(rows: Array, _importance: Array | None = None) -> Array:
    """Return the weights that :func:`int8_rows` stands for."""
    numbers, scales = int8_rows(rows)
    return numbers * scales


def int4_values(
    rows: Array, importance: Array | None = None, *, group: int, round_scale: RoundScale = to_bf16
) -> Array:
    """Return the weights that :func:`int4_groups` stands for."""
    numbers, scales = _int4_numbers(rows, importance, group, round_scale)
    numbers *= scales[..., None]
    return numbers.reshape(rows.shape)


def nvfp4_values(rows: Array, importance: Array | None = None, *, tensor_scale: float) -> Array:
    """Return the weights that :func:`nvfp4_groups` stands for."""
    numbers, _, scales = _nvfp4_numbers(rows, importance, tensor_scale)
    numbers *= scales[..., None]
    return numbers.reshape(rows.shape)


def _int4_numbers(rows: Array, importance: Array | None, group: int, round_scale: RoundScale) -> Encoded:
    """Return numbers ``[R, K / group, group]`` and the scales of groups."""
    grouped = rows.reshape(len(rows), -1, group)
    largest = _largest(grouped)

    def encode(reach: Array) -> Grouped:
        scales = _positive(round_scale(largest / reach))
        numbers = grouped / scales[..., None]
        np.clip(np.rint(numbers, out=numbers), INT4_MIN, INT4_MAX, out=numbers)
        return numbers, scales, scales

    numbers, scales, _ = _least_error(grouped, importance, INT4_REACH, INT4_REACHES, encode)
    return numbers, scales


def _nvfp4_numbers(rows: Array, importance: Array | None, tensor_scale: float) -> Grouped:
    """Return numbers ``[R, K / 16, 16]``, scales of groups as codes, and in float32."""
    grouped = rows.reshape(len(rows), -1, 16)
    largest, whole = _largest(grouped), np.float32(tensor_scale)

    def encode(reach: Array) -> Grouped:
        stored = to_e4m3(largest / reach * whole)
        scales = from_e4m3(stored) / whole
        divisors = np.where(scales > 0, scales, np.float32(np.inf))
        return round_e2m1(grouped / divisors[..., None]), stored, scales

    return _least_error(grouped, importance, E2M1_MAX, NVFP4_REACHES, encode)


def _least_error(
    grouped: Array,
    importance: Array | None,
    plain: float,
    reaches: tuple[float, ...],
    encode: Callable[[Array], Grouped],
) -> Grouped:
    """Return the encoding whose weighted squared error is least in each group.

    Args:
        grouped: ``[R, K / group, group]``.
        importance: ``[K]``; None: the encoding of ``plain`` is taken.
        plain, reaches: largest magnitude of a group over its scale, as usual and as candidates.
        encode: encoder by the reach of each group, or one for all.
    """
    if importance is None:
        return encode(np.float32(plain))
    weights = importance.reshape(1, *grouped.shape[1:])
    least = np.full(grouped.shape[:2], np.inf, np.float32)
    best = np.full(grouped.shape[:2], reaches[0], np.float32)
    for reach in reaches:
        errors, _, scales = encode(np.float32(reach))
        errors *= scales[..., None]
        errors -= grouped
        errors *= errors
        errors *= weights
        total = errors.sum(axis=2)
        is_less = total < least
        np.copyto(least, total, where=is_less)
        np.copyto(best, np.float32(reach), where=is_less)
    return encode(best)


def nvfp4_tensor_scale(largest: float) -> float:
    """Return the factor that maps the largest scale of a group to E4M3's largest, compressed-tensors' way.

    Args:
        largest: largest magnitude of the weights that share it.
    """
    return float(np.float32(E4M3_MAX * E2M1_MAX / largest)) if largest > 0 else 1.0


def nibble_pairs(codes: Array) -> Array:
    """Return codes below 16, ``[R, K]`` uint8, two in a byte, the even column low: ``[R, K / 2]``."""
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def _largest(grouped: Array) -> Array:
    """Return the largest magnitude of each group ``[R, G, group]``, by halves: NumPy's own is slower."""
    largest = np.abs(grouped)
    while (count := largest.shape[2]) > 1:
        half = count // 2
        both = np.maximum(largest[..., :half], largest[..., half : 2 * half])
        largest = np.concatenate([both, largest[..., 2 * half :]], axis=2) if count % 2 else both
    return largest[..., 0]


def _positive(scales: Array) -> Array:
    """Return scales with 1 in place of 0, which belongs to weights that are all zero."""
    return np.where(scales > 0, scales, np.float32(1))
