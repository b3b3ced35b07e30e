"""Dequantized blocks of every GGUF type equal the gguf package's own, bit for bit."""

import gguf
import numpy as np
import pytest
from tiny_gguf import random_blocks

from wisp_plan.gguf.tensor_types import BLOCK_TYPES, OTHER_TYPES, PLAIN_TYPES, TYPES_BY_NUMBER
from wisp_runtime.weights.gguf_blocks.bits import ScaleInvalid
from wisp_runtime.weights.gguf_blocks.dequantize import DECODERS, dequantize
from wisp_runtime.weights.gguf_blocks.grids import grids
from wisp_runtime.weights.row_pairs import in_halves

ROWS, COLUMNS = 37, 2048  # more than are decoded at a time


def as_blocks(raw, kind):
    return raw.view(np.dtype((np.void, BLOCK_TYPES[kind].size_bytes)))


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_random_blocks_are_dequantized_as_by_ggml_itself(kind):
    raw = random_blocks(kind, ROWS, COLUMNS)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    found = dequantize(kind, as_blocks(raw, kind))
    assert found.shape == (ROWS, COLUMNS)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "Q8_0", "IQ1_M"])
def test_a_scale_that_is_no_number_is_refused(kind):
    raw = random_blocks(kind, 2, 256)
    if kind == "IQ1_M":
        raw[1, -7::2] |= 0xF0  # all nibbles of the float16
    else:
        raw[1, -2:] = raw[1, :2] = (0, 0x7C)
    with pytest.raises(ScaleInvalid):
        dequantize(kind, as_blocks(raw, kind))


def test_numbers_names_and_sizes_of_types_are_ggmls():
    for number, block in TYPES_BY_NUMBER.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (block.name, (block.weights, block.size_bytes)) == (kind.name, gguf.GGML_QUANT_SIZES[kind])
    for number, name in PLAIN_TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == name
    assert not {*TYPES_BY_NUMBER, *PLAIN_TYPES} & {*OTHER_TYPES}
    assert {kind.value for kind in gguf.GGMLQuantizationType} <= {
        *TYPES_BY_NUMBER,
        *PLAIN_TYPES,
        *OTHER_TYPES,
    }
    assert DECODERS.keys() == BLOCK_TYPES.keys()
    assert BLOCK_TYPES["Q4_K"].bits == 4.5


def test_the_grids_are_ggmls():
    for name, points in grids().items():
        kind = getattr(gguf.quants, "IQ1_S" if name == "IQ1" else name)
        kind.init_grid()
        np.testing.assert_array_equal(points, kind.grid[0, 0] * (8 if name == "IQ1" else 1))


def test_the_rows_of_a_head_return_from_pairs_to_halves():
    half = np.arange(2 * 6).reshape(12, 1)  # two heads of six rows
    paired = half.reshape(2, 2, 3, 1).swapaxes(1, 2).reshape(12, 1)  # what llama.cpp's converter does
    assert paired[:6, 0].tolist() == [0, 3, 1, 4, 2, 5]
    np.testing.assert_array_equal(in_halves(paired, 6), half)
    assert in_halves(half, 0) is half
