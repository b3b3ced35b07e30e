"""Packed quantized matrices: what is packed comes out again, and lies where the kernels read it."""

import numpy as np
import pytest
from quantized_matrix import quantized_matrix

from wisp_plan.quantization.packed_format import EXPERT_FORMATS, PACKED_FORMATS
from wisp_runtime.ops.reference.quantized_packing import (
    QuantizedMatrix,
    dequantize,
    pack_quantized,
    unpack_quantized,
)

FORMATS = PACKED_FORMATS | EXPERT_FORMATS
EVERY = pytest.mark.parametrize("packed", FORMATS.values(), ids=FORMATS)


@EVERY
@pytest.mark.parametrize("shape", [(64, 256), (192, 512), (80, 384)])
@pytest.mark.parametrize("permutation", ["plain", "gate_up_interleaved"])
def test_what_is_packed_comes_out_again(packed, shape, permutation):
    matrix = quantized_matrix(packed, *shape)
    storage = pack_quantized(packed, matrix, permutation)
    again = unpack_quantized(packed, storage, *shape, permutation)

    assert storage.nbytes == packed.sections(*shape)[2]
    for name in ("codes", "row_scales", "group_scales", "zero_points", "block_scales"):
        want, got = getattr(matrix, name), getattr(again, name)
        assert (want is None) == (got is None), name
        assert want is None or np.array_equal(want, got), name
    assert np.array_equal(dequantize(packed, again), dequantize(packed, matrix))


@EVERY
def test_padding_weighs_nothing(packed):
    matrix = quantized_matrix(packed, 24, 128)
    whole = unpack_quantized(packed, pack_quantized(packed, matrix), 64, packed.tile_columns)

    weights = dequantize(packed, whole)

    assert np.array_equal(weights[:24, :128], dequantize(packed, matrix))
    assert not weights[24:].any()
    assert not weights[:, 128:].any()


@pytest.mark.parametrize("row", [0, 7, 8, 21, 63])
@pytest.mark.parametrize("column", [0, 1, 9, 77, 127])
def test_a_byte_of_eight_bits_lies_in_its_lanes_fragment(row, column):
    codes = np.zeros((64, 128), np.uint8)
    codes[row, column] = 1
    storage = pack_quantized(PACKED_FORMATS["fp8"], QuantizedMatrix(codes, np.zeros(64, np.float32)))

    number_of_slice, within = divmod(row, 16)
    half, upper = divmod(within, 8)
    quarter, rest = divmod(column, 32)
    step, rest = divmod(rest, 16)
    side, rest = divmod(rest, 8)
    lane = upper * 4 + rest // 2
    octet = step * 8 + side * 4 + half * 2 + rest % 2
    assert np.flatnonzero(storage).tolist() == [number_of_slice * 2048 + quarter * 512 + lane * 16 + octet]


def test_codes_of_four_bits_lie_where_kernels_read_them():
    # Row 9, column 30: lower half, lane 1 * 4 + 3, step 1, right side, column 0 of the pair.
    codes = np.full((64, 256), 8, np.uint8)
    codes[9, 30] = 0xB
    storage = pack_quantized(
        PACKED_FORMATS["int4"],
        QuantizedMatrix(codes, np.zeros(64, np.float32), np.zeros((64, 2), np.float16)),
    )
    octet = 7 * 16 + 1 * 4 + 0 * 2 + 1
    assert storage[octet] == 0xB8
    assert (np.delete(storage[:2048], octet) == 0x88).all()

    codes = np.zeros((64, 256), np.uint8)
    codes[9, 30] = 0xB  # a sign, and 3
    no_scales = np.zeros((64, 8), np.uint8), np.zeros((64, 16), np.uint8)
    rows = np.zeros(64, np.float32)
    words = pack_quantized(PACKED_FORMATS["mxfp4"], QuantizedMatrix(codes, rows, no_scales[0]))[:2048].view(
        "<u4"
    )
    assert words[7 * 4 + 1] == 3 << (4 * (4 + 2)) | 1 << (8 * 2 + 3)
    halves = pack_quantized(PACKED_FORMATS["nvfp4"], QuantizedMatrix(codes, rows, no_scales[1]))[:2048].view(
        "<u2"
    )
    assert halves[(7 * 4 + 1) * 2] == 3 | 1 << 13

    fields = EXPERT_FORMATS["mxfp4_fields"]
    words = pack_quantized(fields, QuantizedMatrix(codes, rows, no_scales[0]))[:2048].view("<u4")
    assert np.flatnonzero(words).tolist() == [7 * 4 + 1]  # group 0, lower half
    word = int(words[7 * 4 + 1])
    masked = [
        place & 0x81C081C0 for place in (word, word << 4, word >> 6 | word << 26, word << 6 ^ word >> 2)
    ]
    assert masked == [0, 0, 0, 1 << 15 | 3 << 6]


def test_scales_of_groups_follow_the_codes_of_their_slice():
    packed = PACKED_FORMATS["int4_zero"]
    matrix = quantized_matrix(packed, 64, 512)
    tiles = pack_quantized(packed, matrix)[: 2 * packed.tile_bytes].reshape(2, 4, packed.slice_bytes)

    scales = tiles[1, 2, 2048:2112].view(np.float16).reshape(8, 2, 2)  # row of the half, group, half
    zeros = tiles[1, 2, 2112:].reshape(8, 2, 2)

    assert scales[5, 1, 1] == matrix.group_scales[2 * 16 + 8 + 5, 2 + 1]
    assert zeros[5, 1, 1] == matrix.zero_points[2 * 16 + 8 + 5, 2 + 1]


def test_block_scales_and_row_scales_have_sections_of_their_own():
    packed = PACKED_FORMATS["fp8_block"]
    matrix = quantized_matrix(packed, 192, 384)
    storage = pack_quantized(packed, matrix)
    block_scales, row_scales, size_bytes = packed.sections(192, 384)

    blocks = storage[block_scales:row_scales].view(np.float32)[: 9 * 8].reshape(3, 3, 4, 2)
    assert blocks[2, 1, 3, 1] == matrix.block_scales[191, 1]
    assert np.array_equal(storage[row_scales:size_bytes].view(np.float32), matrix.row_scales)


@EVERY
def test_bytes_a_weight(packed):
    size = packed.sections(4096, 14336)[2] / (4096 * 14336)
    stated = {
        "fp8": 1,
        "fp8_block": 1.0039,
        "int8": 1,
        "int4": 0.5156,
        "int4_zero": 0.5234,
        "int4_g64": 0.5313,
        "int4_g64_zero": 0.5469,
        "int4_g32": 0.5625,
        "int4_g32_zero": 0.5938,
        "mxfp4": 0.5313,
        "mxfp4_fields": 0.5313,
        "nvfp4": 0.5625,
    }
    assert size == pytest.approx(stated[packed.name], rel=1e-3)
    assert packed.tile_bytes % 128 == 0
