"""Quantize a matrix to a packed format: round to nearest, scales as a checkpoint's would be."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from wisp_plan.quantization.packed_format import PackedFormat
from wisp_runtime.ops.reference.quantized_packing import E2M1, QuantizedMatrix

_LARGEST = {"e4m3": 448.0, "int8": 127.0, "int4": 7.0, "e2m1": 6.0}


def quantize(packed: PackedFormat, matrix: np.ndarray) -> QuantizedMatrix:
    """Return the nearest numbers of ``[out, in]`` float32; ``in`` is a multiple of the group.

    Block scales differ for every 8 rows and 128 columns, more than any checkpoint's do.
    """
    rows, columns = matrix.shape
    largest = np.float32(_LARGEST[packed.numbers])
    row_scales = np.abs(matrix).max(1).astype(np.float32) / largest
    groups = blocks = zeros = None
    if packed.has_block_scales:
        width = packed.tile_columns
        octets = np.pad(np.abs(matrix), ((0, -rows % 8), (0, -columns % width))).reshape(
            -(-rows // 8), 8, -1, width
        )
        row_scales = np.exp2(np.arange(rows) % 3 - 1).astype(np.float32)
        blocks = np.repeat(octets.max((1, 3)).astype(np.float32) / largest, 8, axis=0)[:rows]
        scales = blocks * row_scales[:, None]
    elif packed.group:
        width = packed.group
        wanted = np.abs(matrix).reshape(rows, -1, width).max(2) / largest
        groups, values, row_scales = _group_scales(packed, wanted)
        scales = values * row_scales[:, None]
    else:
        scales, width = row_scales[:, None], columns
    wide = np.repeat(scales, width, axis=1)[:, :columns]
    numbers = matrix / np.where(wide == 0, np.float32(1e-30), wide)
    if packed.has_zero_points:
        zeros = np.random.default_rng(rows).integers(5, 11, groups.shape).astype(np.uint8)
        numbers += np.repeat(zeros, width, axis=1)[:, :columns] - np.float32(8)
    return QuantizedMatrix(_codes(packed, numbers), row_scales, groups, zeros, blocks)


def _group_scales(packed: PackedFormat, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scales of groups as they are stored, the numbers they stand for, and the rows' scales."""
    if packed.group_scales == "f16":
        rows = np.exp2(np.arange(len(wanted)) % 3 - 1).astype(np.float32)
        signs = np.where(np.arange(wanted.shape[1]) % 3, 1, -1)  # those of GGUF's Q4_0 are of either sign
        stored = (wanted / rows[:, None] * signs).astype(np.float16)
        return stored, stored.astype(np.float32), rows
    if packed.group_scales == "exponent":
        exponents = np.ceil(np.log2(np.maximum(wanted, 1e-30)))
        top = exponents.max(1)
        stored = np.clip(exponents - top[:, None] + 26, 0, 26).astype(np.uint8)
        return stored, np.exp2(stored.astype(np.float32) - 13), np.exp2(top - 13).astype(np.float32)
    whole = np.float32(wanted.max() / 448)
    e4m3 = (wanted / whole).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    stored = ((e4m3 * 128).astype(np.float16).view(np.uint16) >> 7).astype(np.uint8)
    return stored, e4m3 * np.float32(2.0**-7), np.full(len(wanted), whole * 128, np.float32)


def _codes(packed: PackedFormat, numbers: np.ndarray) -> np.ndarray:
    match packed.numbers:
        case "e4m3":
            return np.clip(numbers, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        case "e2m1":
            sizes = np.searchsorted((E2M1[:7] + E2M1[1:8]) / 2, np.abs(numbers))  # of ties the smaller
            return (sizes + 8 * ((numbers < 0) & (sizes > 0))).astype(np.uint8)
        case "int8":
            return (np.rint(numbers).clip(-128, 127) + 128).astype(np.uint8)
    return (np.rint(numbers).clip(-8, 7) + 8).astype(np.uint8)
