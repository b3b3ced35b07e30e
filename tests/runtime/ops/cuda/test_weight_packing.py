"""The tiled layout of a GPU's weights, there and back, as kernels/README.md has it."""

import numpy as np
import pytest

from wisp_plan.weights.layout import packed_elements
from wisp_runtime.ops.protocol.weights.row_permutation import interleaved_head_size
from wisp_runtime.ops.reference.packing import pack, permuted_rows, unpack

RANDOM = np.random.default_rng(11)
SHAPES = (
    (8, 8),  # the smallest
    (64, 64),  # one block
    (72, 72),  # a little more than one, both ways
    (576, 576),
    (1, 128),
    (151, 200),
    (160, 4864),
)


def matrix(outputs, inputs):
    """Numbers from 1 on, so that no element is zero."""
    return (
        (np.arange(outputs * inputs, dtype=np.uint32) % 65535 + 1).astype(np.uint16).reshape(outputs, inputs)
    )


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize(
    "permutation",
    ["plain", "gate_up_interleaved", "rope_interleaved_128", "rope_interleaved_192", "rope_interleaved_256"],
)
def test_a_matrix_comes_back(outputs, inputs, permutation):
    unit = interleaved_head_size(permutation) or (16 if permutation == "gate_up_interleaved" else 1)
    outputs = -(-outputs // unit) * unit
    rows = matrix(outputs, inputs)
    storage = pack(rows, permutation)
    assert storage.shape == (packed_elements(outputs, inputs),)
    assert np.array_equal(unpack(storage, outputs, inputs, permutation), rows)
    assert np.count_nonzero(storage) == rows.size  # padding is zero


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_an_element_lies_where_the_kernels_look_for_it(outputs, inputs):
    rows = matrix(outputs, inputs)
    storage = pack(rows).view(np.uint8)
    tiles = -(-inputs // 64)
    for row, column in zip(RANDOM.integers(0, outputs, 50), RANDOM.integers(0, inputs, 50), strict=True):
        block = (row // 64 * tiles + column // 64) * 8192
        chunk = column % 64 // 8 ^ row % 8
        byte = block + row % 64 * 128 + chunk * 16 + column % 8 * 2
        assert int(storage[byte]) + 256 * int(storage[byte + 1]) == rows[row, column]


def test_a_row_tile_is_one_stream_over_the_columns():
    rows = matrix(192, 256)
    second = pack(rows)[64 * 256 : 2 * 64 * 256]
    assert np.array_equal(second, pack(rows[64:128]))


@pytest.mark.parametrize("half", [8, 64, 4864])
def test_gate_and_up_alternate_by_eights(half):
    places = permuted_rows(2 * half, "gate_up_interleaved")
    assert sorted(places) == list(range(2 * half))
    gate, up = places[:half], places[half:]
    assert np.array_equal(up, gate + 8)
    for place in range(2 * half):  # the formula the other way round
        logical = place // 16 * 8 + place % 16 if place % 16 < 8 else half + place // 16 * 8 + place % 16 - 8
        assert places[logical] == place


@pytest.mark.parametrize("size", [128, 192, 256])
def test_a_row_tile_has_both_halves_of_what_turns_together(size):
    heads = 3
    places = permuted_rows(heads * size, f"rope_interleaved_{size}")
    assert sorted(places) == list(range(heads * size))
    for head in range(heads):
        first, second = (places[head * size + half * size // 2 :][: size // 2] for half in range(2))
        assert np.array_equal(second, first + 32)  # what rotary_epilogue.cuh expects
        assert np.array_equal(first // 64, head * size // 64 + np.arange(size // 2) // 32)


def test_plain_rows_stay_where_they_are():
    assert np.array_equal(permuted_rows(151, "plain"), np.arange(151))
