"""Codes of keys and values: rounding, saturation, subnormals, zero scales, packing, rotation."""

from __future__ import annotations

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from wisp_plan.kv_formats.layers import KV_FORMATS
from wisp_runtime.ops.reference.kv_cache import codebook
from wisp_runtime.ops.reference.kv_cache.blocks import QuantizedBlocks, decode_rows, encode_rows
from wisp_runtime.ops.reference.kv_cache.e2m1 import to_e2m1
from wisp_runtime.ops.reference.kv_cache.hadamard import rotate
from wisp_runtime.ops.reference.kv_cache.packing import (
    pack_nibbles,
    pack_triples,
    pair_table,
    unpack_triples,
)
from wisp_runtime.ops.reference.quantized_packing import E2M1
from wisp_runtime.ops.reference.rounding import from_e4m3, to_e4m3

QUANTIZED = [kv_format for kv_format in KV_FORMATS.values() if kv_format.is_quantized]
RANDOM = np.random.default_rng(11)


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def nearest_even(value: float, grid: list[float]) -> int:
    """Return the index of the grid's value that is nearest; between two, the even index."""
    distances = [abs(Fraction(value) - Fraction(point)) for point in grid]
    best = min(distances)
    return next(i for parity in (0, 1) for i, d in enumerate(distances) if d == best and i % 2 == parity)


def test_e4m3_rounds_to_nearest_even_down_to_subnormals_and_saturates():
    grid = [float(value) for value in from_e4m3(np.arange(0x7F, dtype=np.uint8))]
    assert (grid[1], grid[7], grid[8], grid[-1]) == (2.0**-9, 7 * 2.0**-9, 2.0**-6, 448.0)
    middles = [(low + high) / 2 for low, high in itertools.pairwise(grid)]
    values = [*grid, *middles, *(abs(random(200)) * 3).tolist(), 0.001, 449.0, 1e30, np.inf]
    expect = [nearest_even(min(value, 448.0), grid) for value in values]
    assert to_e4m3(np.array(values, np.float32)).tolist() == expect
    assert to_e4m3(-np.array(values, np.float32)).tolist() == [code | 0x80 for code in expect]


def test_e2m1_rounds_to_nearest_even_and_saturates():
    grid = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    middles = [(low + high) / 2 for low, high in itertools.pairwise(grid)]
    values = [*grid, *middles, *(abs(random(200)) * 3).tolist(), 6.1, 1e30, np.inf]
    expect = [nearest_even(min(value, 6.0), grid) for value in values]
    assert to_e2m1(np.array(values, np.float32)).tolist() == expect
    assert to_e2m1(-np.array(values, np.float32)).tolist() == [code | 8 for code in expect]


def test_a_scale_of_a_codebook_is_a_float16_without_sign_and_seven_bits():
    codes = np.arange(0xF8, dtype=np.uint8)
    values = codebook.from_scale(codes)
    np.testing.assert_array_equal(values, (codes.astype(np.uint16) << 7).view(np.float16).astype(np.float32))
    grid = values.tolist()
    middles = [(low + high) / 2 for low, high in itertools.pairwise(grid)]
    wanted = [*grid, *middles, *(abs(random(100)) * 100).tolist(), *(abs(random(100)) * 1e-4).tolist(), 1e30]
    expect = [nearest_even(min(value, grid[-1]), grid) for value in np.array(wanted, np.float32).tolist()]
    assert codebook.to_scale(np.array(wanted, np.float32)).tolist() == expect
    assert np.isnan(codebook.from_scale(codebook.to_scale(np.array([np.nan], np.float32)))).all()


@pytest.mark.parametrize("bits", [3, 4])
def test_a_codebook_is_lloyds_and_maxs_for_a_gaussian(bits):
    above, below = np.split(codebook.levels(bits).astype(np.float64), 2)
    points = np.linspace(0, 8, 200_001)
    density = np.exp(-(points**2) / 2)
    cells = np.searchsorted(codebook.midpoints(bits).astype(np.float64), points)
    means = np.bincount(cells, density * points) / np.bincount(cells, density)
    np.testing.assert_allclose(above, means, rtol=2**-8)  # levels are bf16
    np.testing.assert_array_equal(below, -above)


def test_nibbles_and_triples_are_packed_from_the_lowest_bits_on():
    codes = np.arange(16, dtype=np.uint8)[None]
    assert pack_nibbles(codes)[0].tolist() == [low | low + 1 << 4 for low in range(0, 16, 2)]
    eight = np.array([[1, 2, 3, 4, 5, 6, 7, 0]], np.uint8)
    word = sum(int(code) << 3 * i for i, code in enumerate(eight[0]))
    assert pack_triples(eight)[0].tolist() == list(word.to_bytes(3, "little"))
    many = RANDOM.integers(0, 8, (5, 80)).astype(np.uint8)
    np.testing.assert_array_equal(unpack_triples(pack_triples(many)), many)
    np.testing.assert_array_equal(pair_table(E2M1)[0x3A], [-1.0, 1.5])


@pytest.mark.parametrize("size", [64, 80, 96, 128])
def test_the_rotation_is_orthogonal_and_its_own_inverse(size):
    rows = random(7, size)
    np.testing.assert_allclose(rotate(rotate(rows)), rows, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(rotate(rows), axis=1), np.linalg.norm(rows, axis=1), rtol=1e-5)
    outlier = np.zeros((1, size), np.float32)
    outlier[0, 3] = 4.0
    assert abs(rotate(outlier)).max() <= 1.01 * 4 / 16**0.5  # spread over 16 channels at least


# Error of Gaussian rows, mean square over mean square, of each format at its best scale: an upper bound.
GAUSSIAN_ERROR = {"fp8": 7.5e-4, "turbo8": 7.5e-4, "nvfp4": 9.3e-3, "turbo4": 7.5e-3, "turbo3": 2.6e-2}


@pytest.mark.parametrize("kv_format", QUANTIZED, ids=lambda f: f.name)
@pytest.mark.parametrize("size", [64, 80, 128])
def test_rows_come_back_with_the_formats_error(kv_format, size):
    rows = random(400, size)
    scale = 0.25 if kv_format.has_layer_scale else 1.0
    codes, scales = encode_rows(kv_format, rows, scale)
    assert codes.shape[1] + scales.shape[1] == kv_format.row_bytes(size)
    found = decode_rows(kv_format, codes, scales, scale)
    assert ((found - rows) ** 2).mean() < GAUSSIAN_ERROR[kv_format.name] * (rows**2).mean()


@pytest.mark.parametrize("kv_format", QUANTIZED, ids=lambda f: f.name)
def test_zeros_stay_zeros_and_nan_stays_nan(kv_format):
    rows = np.stack([np.zeros(32, np.float32), random(32), np.full(32, 1e-30, np.float32)])
    rows[1, 5] = np.nan
    found = decode_rows(kv_format, *encode_rows(kv_format, rows, 1.0), 1.0)
    np.testing.assert_array_equal(found[[0, 2]], 0)
    assert np.isnan(found[1]).any()


def test_turbo4_errs_less_than_nvfp4_with_the_same_bytes():
    rows = random(2000, 64)
    errors = {}
    for name in ("nvfp4", "turbo4"):
        encoded = encode_rows(KV_FORMATS[name], rows, 1.0)
        errors[name] = ((decode_rows(KV_FORMATS[name], *encoded, 1.0) - rows) ** 2).mean()
    assert KV_FORMATS["nvfp4"].row_bytes(64) == KV_FORMATS["turbo4"].row_bytes(64)
    assert errors["turbo4"] < 0.85 * errors["nvfp4"]


def test_fp8_is_what_ml_dtypes_makes_of_values_over_the_scale():
    rows = random(9, 64) * 100
    codes, _ = encode_rows(KV_FORMATS["fp8"], rows, 2.0)
    np.testing.assert_array_equal(codes, (rows / 2).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


@pytest.mark.parametrize("kv_format", QUANTIZED, ids=lambda f: f.name)
def test_a_block_holds_the_codes_of_its_rows_then_their_scales(kv_format):
    size, block_tokens = 32, 4
    cache = np.full((3, 2, block_tokens, kv_format.row_elements(size)), 0xEE, np.uint8)
    blocks = QuantizedBlocks(cache, kv_format, size)
    rows = random(3, 2, size)
    blocks.write(rows, np.array([2 * block_tokens + 3, 5, 4]))
    codes, scales = encode_rows(kv_format, rows, 1.0)
    flat, code_bytes, scale_bytes = cache.reshape(3, 2, -1), kv_format.code_bytes(size), scales.shape[-1]
    for row, (block, offset) in enumerate([(2, 3), (1, 1), (1, 0)]):
        head = flat[block, 1]
        np.testing.assert_array_equal(head[offset * code_bytes :][:code_bytes], codes[row, 1])
        first = block_tokens * code_bytes + offset * scale_bytes
        np.testing.assert_array_equal(head[first : first + scale_bytes], scales[row, 1])
    assert (flat[0] == 0xEE).all()
    taken = blocks.take(np.array([1]))[0, :, 1]
    found = rotate(taken) if kv_format.is_rotated else taken
    np.testing.assert_array_equal(found, decode_rows(kv_format, codes[1], scales[1], 1.0))
