"""Reference implementation of rounding to nearest: unquantized rows as numbers and scales.

Rows are independent of each other, so that a matrix may come in chunks. Arithmetic is float32, an operation
at a time, and the GPU's (``kernels/portable/weights/quantize_rows.cu``) is the same to the bit:

- FP8 and int8: the row's largest magnitude becomes 448 and 127;
- int4: a group's largest magnitude becomes 7.5, so half a step of one end is clipped; its scale is rounded to
  bf16, and held in f16 in units of a power of two of the row;
- NVFP4: a row's largest group scale becomes E4M3's largest, 448; a group's largest magnitude 6;
- MXFP4: a group's exponent is its largest magnitude's less 2 (Open Compute MX, 1.0, section 6.3).

A row or group of zeros has a scale of 0. Zero points are the middle, and block scales 1.
"""

from __future__ import annotations

import numpy as np

from wisp_plan.quantization.packed_format import PackedFormat
from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.quantized_packing import QuantizedMatrix
from wisp_runtime.ops.reference.rounding import (
    E2M1_MAX,
    E4M3_MAX,
    from_e4m3,
    to_bf16,
    to_e2m1,
    to_e4m3,
)

INT8_MAX, INT4_REACH = 127.0, 7.5
MAX_EXPONENT_BYTE = 26
"""Byte of the largest exponent of a row of MXFP4; it stands for 2^13."""

_MIDDLE = 8


def quantize(packed: PackedFormat, rows: Array) -> QuantizedMatrix:
    """Return the nearest quantized matrix of ``rows`` ``[R, in]`` float32; in is a multiple of the group."""
    match packed.numbers, packed.group_scales:
        case "int4", _:
            return _int4(packed, rows)
        case _, "e4m3":
            return _nvfp4(packed, rows)
        case _, "exponent":
            return _mxfp4(packed, rows)
    return _eight_bits(packed, rows)


def _eight_bits(packed: PackedFormat, rows: Array) -> QuantizedMatrix:
    is_integer = packed.numbers == "int8"
    scales = np.abs(rows).max(axis=1) / np.float32(INT8_MAX if is_integer else E4M3_MAX)
    numbers = _divided(rows, scales[:, None])
    if is_integer:
        return QuantizedMatrix((np.rint(numbers) + 128).astype(np.uint8), scales)
    blocks = None
    if packed.has_block_scales:
        blocks = np.ones((len(rows), packed.tiles(*rows.shape)[1]), np.float32)
    return QuantizedMatrix(to_e4m3(numbers), scales, block_scales=blocks)


def _int4(packed: PackedFormat, rows: Array) -> QuantizedMatrix:
    grouped = rows.reshape(len(rows), -1, packed.group)
    scales = to_bf16(np.abs(grouped).max(axis=2) / np.float32(INT4_REACH))
    row_scales = power_of_two(scales.max(axis=1))
    stored = _divided(scales, row_scales[:, None]).astype(np.float16)
    scales = stored.astype(np.float32) * row_scales[:, None]
    numbers = np.clip(np.rint(_divided(grouped, scales[..., None])), -_MIDDLE, _MIDDLE - 1)
    codes = (numbers + _MIDDLE).astype(np.uint8).reshape(rows.shape)
    zeros = np.full(stored.shape, _MIDDLE, np.uint8) if packed.has_zero_points else None
    return QuantizedMatrix(codes, row_scales, stored, zeros)


def _nvfp4(packed: PackedFormat, rows: Array) -> QuantizedMatrix:
    grouped = rows.reshape(len(rows), -1, packed.group)
    largest = np.abs(grouped).max(axis=2)
    row_scales = largest.max(axis=1) / np.float32(E4M3_MAX * E2M1_MAX)
    codes = to_e4m3(_divided(largest / np.float32(E2M1_MAX), row_scales[:, None]))
    scales = from_e4m3(codes) * row_scales[:, None]
    numbers = to_e2m1(_divided(grouped, scales[..., None])).reshape(rows.shape)
    return QuantizedMatrix(numbers, row_scales * np.float32(128), packed_e4m3(codes))


def _mxfp4(packed: PackedFormat, rows: Array) -> QuantizedMatrix:
    grouped = rows.reshape(len(rows), -1, packed.group)
    exponents = _exponent(np.abs(grouped).max(axis=2)) - 2
    largest = exponents.max(axis=1, keepdims=True)
    octets = np.maximum(exponents - largest + MAX_EXPONENT_BYTE, 0)
    scales = np.ldexp(np.float32(1), octets + largest - MAX_EXPONENT_BYTE)
    numbers = to_e2m1(grouped / scales[..., None]).reshape(rows.shape)
    row_scales = np.ldexp(np.float32(1), largest[:, 0] - MAX_EXPONENT_BYTE // 2)
    return QuantizedMatrix(numbers, row_scales, octets.astype(np.uint8))


def packed_e4m3(codes: Array) -> Array:
    """Return the bytes that a packed tile stores for non-negative E4M3 ``codes``: 128 times them, as f16."""
    return _PACKED_E4M3[codes]


_PACKED_E4M3 = (
    (from_e4m3(np.arange(256, dtype=np.uint8) & 0x7F) * np.float32(128)).astype(np.float16).view(np.uint16)
    >> 7
).astype(np.uint8)


def _divided(values: Array, scales: Array) -> Array:
    """Return ``values / scales``, 0 where a scale is 0."""
    return np.divide(values, scales, out=np.zeros_like(values), where=scales > 0)


def _exponent(values: Array) -> Array:
    """Return the binary exponents of float32 values of at least 0; -127 of 0."""
    return (values.view(np.int32) >> 23) - 127


def power_of_two(values: Array) -> Array:
    """Return the largest power of two up to each value; 2^-127 of 0."""
    return np.ldexp(np.float32(1), _exponent(values))
