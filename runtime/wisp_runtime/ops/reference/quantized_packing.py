"""Reference implementation of packed quantized matrices, and its inverse.

The sections are those of :mod:`wisp_plan.quantization.packed_format`.

In a slice of codes a lane l of a warp has 16 bytes of each of four quarters, ``[quarter][l][16]``: the A
fragments of consecutive steps of 16 columns. A fragment has rows l / 4 (upper) and l / 4 + 8 (lower) and
columns 2 (l % 4) and the next, at 0 (left) and 8 (right):

- 8 bits: bytes ``[step][left, right][upper, lower][2 columns]``;
- int4: bytes ``[step][2 columns][upper, lower]``, the left code in the low nibble, the right in the high one;
- E2M1 of MXFP4, a 32-bit word a step: nibbles 0-3 the upper row's left and right pair, 4-7 the lower's,
  without signs; the sign of number i of a row at bit 8 i + 7 (upper) and 8 i + 3 (lower);
- E2M1 of NVFP4, 16 bits of each of the two columns: upper left, lower left, upper right, lower right at bits
  11-9, 8-6, 5-3, 2-0, their signs at bits 15, 12, 14, 13;
- E2M1 in fields: :mod:`.field_packing`.

Scales and zero points of groups lie as ``[l / 4][group][upper, lower]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from wisp_plan.quantization.packed_format import CODE_BYTES, TILE_ROWS, PackedFormat
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.weights.row_permutation import RowPermutation
from wisp_runtime.ops.reference.field_packing import pack_fields, unpack_fields
from wisp_runtime.ops.reference.packing import permuted_rows

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""Values of the codes of E2M1."""

_OFFSETS = {"e4m3": 0, "int8": 128, "int4": 8, "e2m1": 0}
_SIGN_BITS, _CODE_BITS = (
    (15, 12, 14, 13),
    (9, 6, 3, 0),
)  # of NVFP4: upper left, lower left, upper right, lower right


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A quantized ``[out, in]`` matrix in the order of its rows and columns.

    Attributes:
        codes: ``[out, in]`` uint8: an E4M3's bits, an integer with 128 or 8 added, or E2M1's four bits.
        row_scales: ``[out]`` float32.
        group_scales: ``[out, ceil(in / group)]``: float16, or the byte that a packed format stores; or None.
        zero_points: ``[out, ceil(in / group)]`` uint8, or None.
        block_scales: ``[out, ceil(in / 128)]`` float32, or None; equal in every eight rows of a packed tile.
    """

    codes: Array
    row_scales: Array
    group_scales: Array | None = None
    zero_points: Array | None = None
    block_scales: Array | None = None


def dequantize(packed: PackedFormat, matrix: QuantizedMatrix) -> Array:
    """Return the weights that a quantized matrix stands for: ``[out, in]`` float32."""
    columns = matrix.codes.shape[1]

    def spread(values: Array, width: int) -> Array:
        return np.repeat(values, width, axis=1)[:, :columns]

    numbers = _numbers(packed, matrix.codes)
    if packed.numbers in ("int8", "int4"):
        zeros = np.float32(_OFFSETS[packed.numbers])
        numbers -= zeros if matrix.zero_points is None else spread(matrix.zero_points, packed.group)
    if matrix.group_scales is not None:
        numbers *= spread(_group_scales(packed, matrix.group_scales), packed.group)
    if matrix.block_scales is not None:
        numbers *= spread(matrix.block_scales, packed.tile_columns)
    return numbers * matrix.row_scales[:, None]


def pack_quantized(
    packed: PackedFormat, matrix: QuantizedMatrix, permutation: RowPermutation = "plain"
) -> Array:
    """Lay a quantized matrix out as a GPU holds it: uint8, as many as ``packed.sections`` says.

    Padding has codes of zero weights, scales of 0 and zero points of the middle.

    Args:
        matrix: its rows before permutation; in is a multiple of the group.
        permutation: row permutation, of scales as of codes.
    """
    outputs, inputs = matrix.codes.shape
    rows = permuted_rows(outputs, permutation)
    row_tiles, column_tiles = packed.tiles(outputs, inputs)
    middle = _OFFSETS[packed.numbers]

    def padded(values: Array, columns: int, fill: int = 0) -> Array:
        whole = np.full((row_tiles * TILE_ROWS, columns), fill, values.dtype)
        whole[rows, : values.shape[1]] = values
        return whole

    codes = padded(matrix.codes, column_tiles * packed.tile_columns, middle)
    slices = [_pack_codes(packed, codes)]
    for values, fill in ((matrix.group_scales, 0), (matrix.zero_points, middle)):
        if values is not None:
            slices.append(_grouped(packed, padded(values, column_tiles * packed.groups, fill)))
    tiles = np.concatenate(slices, axis=-1)
    block_scales, row_scales, size_bytes = packed.sections(outputs, inputs)
    storage = np.zeros(size_bytes, np.uint8)
    storage[: tiles.size] = tiles.reshape(-1)
    if matrix.block_scales is not None:
        scales = padded(matrix.block_scales, column_tiles).reshape(row_tiles, 4, 2, 8, column_tiles)
        octets = np.ascontiguousarray(scales[:, :, :, 0].transpose(0, 3, 1, 2)).view(np.uint8).reshape(-1)
        storage[block_scales : block_scales + octets.size] = octets
    scales = padded(matrix.row_scales[:, None] * _row_factor(packed), 1)
    storage[row_scales : row_scales + scales.nbytes] = scales.view(np.uint8).reshape(-1)
    return storage


def unpack_quantized(
    packed: PackedFormat, storage: Array, outputs: int, inputs: int, permutation: RowPermutation = "plain"
) -> QuantizedMatrix:
    """Return the matrix that :func:`pack_quantized` laid out as ``storage``."""
    rows = permuted_rows(outputs, permutation)
    row_tiles, column_tiles = packed.tiles(outputs, inputs)
    block_scales, row_scales, _ = packed.sections(outputs, inputs)
    tiles = storage[: row_tiles * column_tiles * packed.tile_bytes].reshape(row_tiles, column_tiles, 4, -1)
    zeros = packed.zero_points_at

    def grouped(octets: Array, dtype: Any) -> Array:
        values = np.ascontiguousarray(octets).view(dtype)
        values = values.reshape(row_tiles, column_tiles, 4, 8, packed.groups, 2).transpose(0, 2, 5, 3, 1, 4)
        whole = values.reshape(row_tiles * TILE_ROWS, -1)[rows]
        return np.ascontiguousarray(whole[:, : -(-inputs // packed.group)])

    blocks = None
    if packed.has_block_scales:
        count = row_tiles * column_tiles * 8
        blocks = storage[block_scales : block_scales + 4 * count].view(np.float32)
        blocks = blocks.reshape(row_tiles, column_tiles, 8).transpose(0, 2, 1)
        blocks = np.repeat(blocks, 8, axis=1).reshape(-1, column_tiles)[rows]
    scale_dtype = np.float16 if packed.group_scales == "f16" else np.uint8
    return QuantizedMatrix(
        _unpack_codes(packed, tiles[..., :CODE_BYTES])[rows, :inputs],
        storage[row_scales:].view(np.float32)[rows] / _row_factor(packed),
        grouped(tiles[..., CODE_BYTES:zeros], scale_dtype) if packed.group else None,
        grouped(tiles[..., zeros:], np.uint8) if packed.has_zero_points else None,
        blocks,
    )


def _row_factor(packed: PackedFormat) -> Any:
    return np.float32(4096 if packed.is_in_fields else 1)


def _numbers(packed: PackedFormat, codes: Array) -> Array:
    match packed.numbers:
        case "e4m3":
            return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        case "e2m1":
            return E2M1[codes]
    return codes.astype(np.float32)


def _group_scales(packed: PackedFormat, scales: Array) -> Array:
    match packed.group_scales:
        case "exponent":
            return np.exp2(scales.astype(np.float32) - 13)
        case "e4m3":
            return (scales.astype(np.uint16) << 7).view(np.float16).astype(np.float32) * np.float32(2.0**-14)
    return scales.astype(np.float32)


def _fragments(packed: PackedFormat, codes: Array) -> Array:
    """See codes as row tile, slice, half, row, column tile, quarter, step, side, pair of columns, column."""
    row_tiles, column_tiles = len(codes) // TILE_ROWS, codes.shape[1] // packed.tile_columns
    return codes.reshape(row_tiles, 4, 2, 8, column_tiles, 4, packed.tile_columns // 64, 2, 4, 2)


# Axes of _fragments in the order of a packed slice.
_AXES = {
    "e4m3": (0, 4, 1, 5, 3, 8, 6, 7, 2, 9),
    "int8": (0, 4, 1, 5, 3, 8, 6, 7, 2, 9),
    "int4": (0, 4, 1, 5, 3, 8, 6, 9, 2, 7),
    "e2m1": (0, 4, 1, 5, 3, 8, 6, 9, 7, 2),
}


def _pack_codes(packed: PackedFormat, codes: Array) -> Array:
    """Return ``[row tiles, column tiles, 4, 2048]`` bytes."""
    if packed.is_in_fields:
        return pack_fields(_fragments(packed, codes))
    ordered = np.ascontiguousarray(_fragments(packed, codes).transpose(_AXES[packed.numbers]))
    shape = (*ordered.shape[:3], CODE_BYTES)
    if packed.bits == 8:
        return ordered.reshape(shape)
    if packed.numbers == "int4":
        return (ordered[..., 0] | ordered[..., 1] << 4).reshape(shape)
    # [..., column, side, half]
    magnitudes, signs = ordered.astype(np.uint32) & 7, ordered.astype(np.uint32) >> 3
    if packed.group_scales == "e4m3":
        halves = np.zeros(ordered.shape[:-2], np.uint32)
        for place, (side, half) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            halves |= (
                magnitudes[..., side, half] << _CODE_BITS[place] | signs[..., side, half] << _SIGN_BITS[place]
            )
        return halves.astype("<u2").view(np.uint8).reshape(shape)
    words = np.zeros(ordered.shape[:-3], np.uint32)
    for column, side, half in np.ndindex(2, 2, 2):
        number = 2 * side + column
        words |= magnitudes[..., column, side, half] << (4 * (4 * half + number))
        words |= signs[..., column, side, half] << (8 * number + 7 - 4 * half)
    return words.astype("<u4").view(np.uint8).reshape(shape)


def _unpack_codes(packed: PackedFormat, octets: Array) -> Array:
    """Return ``[rows, columns]`` codes, padding included, of ``[row tiles, column tiles, 4, 2048]`` bytes."""
    row_tiles, column_tiles = octets.shape[:2]
    if packed.is_in_fields:
        return unpack_fields(octets).reshape(row_tiles * TILE_ROWS, column_tiles * packed.tile_columns)
    steps = packed.tile_columns // 64
    axes = _AXES[packed.numbers]
    extents = (row_tiles, 4, 2, 8, column_tiles, 4, steps, 2, 4, 2)
    shape = tuple(extents[axis] for axis in axes)
    octets = np.ascontiguousarray(octets)
    if packed.bits == 8:
        ordered = octets.reshape(shape)
    elif packed.numbers == "int4":
        ordered = np.stack([octets & 15, octets >> 4], -1).reshape(shape)
    elif packed.group_scales == "e4m3":
        halves = octets.view("<u2").astype(np.uint32).reshape(shape[:-2])
        places = [
            halves >> code & 7 | (halves >> sign & 1) << 3
            for code, sign in zip(_CODE_BITS, _SIGN_BITS, strict=True)
        ]
        ordered = np.stack(places, -1).reshape(shape).astype(np.uint8)
    else:
        words = octets.view("<u4").reshape(shape[:-3])
        ordered = np.zeros(shape, np.uint8)
        for column, side, half in np.ndindex(2, 2, 2):
            number = 2 * side + column
            sign = words >> (8 * number + 7 - 4 * half) & 1
            ordered[..., column, side, half] = words >> (4 * (4 * half + number)) & 7 | sign << 3
    fragments = ordered.transpose(np.argsort(axes))
    return fragments.reshape(row_tiles * TILE_ROWS, column_tiles * packed.tile_columns)


def _grouped(packed: PackedFormat, values: Array) -> Array:
    """Return values of groups as ``[row tiles, column tiles, 4, bytes]``."""
    row_tiles, column_tiles = len(values) // TILE_ROWS, values.shape[1] // packed.groups
    ordered = values.reshape(row_tiles, 4, 2, 8, column_tiles, packed.groups).transpose(0, 4, 1, 3, 5, 2)
    return np.ascontiguousarray(ordered).view(np.uint8).reshape(row_tiles, column_tiles, 4, -1)
