"""Rounding to nearest: within half a step of every weight, and equal to a quantized checkpoint's."""

import ml_dtypes
import numpy as np
import pytest

from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_runtime.ops.reference.quantized_packing import dequantize
from wisp_runtime.ops.reference.quantizers import packed_e4m3, quantize
from wisp_runtime.quantize import encoding

EVERY = pytest.mark.parametrize("packed", PACKED_FORMATS.values(), ids=PACKED_FORMATS)
# Largest error over the largest magnitude of what shares a scale: half a step of the coarsest numbers.
BOUNDS = {"e4m3": 16 / 448, "int8": 0.5 / 127, "int4": (0.5 + 7.5 / 256) / 7.5, "e2m1": 2 / 6}


def weights(rows=24, columns=256):
    random = np.random.default_rng(0)
    values = random.standard_normal((rows, columns), np.float32) * 2.0 ** random.integers(-12, 3, (rows, 1))
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


@EVERY
def test_every_weight_is_within_half_a_step(packed):
    rows = weights()
    matrix = quantize(packed, rows)
    meant = dequantize(packed, matrix)
    grouped = rows.reshape(len(rows), -1, packed.group or rows.shape[1])
    reach = np.abs(grouped).max(axis=2, keepdims=True)
    error = np.abs(meant.reshape(grouped.shape) - grouped) / reach
    assert error.max() <= BOUNDS[packed.numbers] * (1 + 1e-3)
    assert np.array_equal(np.sign(meant[meant != 0]), np.sign(rows[meant != 0]))
    assert (matrix.zero_points is not None) == packed.has_zero_points
    assert (matrix.block_scales is not None) == packed.has_block_scales


@EVERY
def test_zeros_stay_zeros(packed):
    rows = np.zeros((2, 256), np.float32)
    rows[1, -1] = 1
    meant = dequantize(packed, quantize(packed, rows))
    assert not meant[0].any()
    assert not meant[1, :-1].any()
    assert meant[1, -1] == pytest.approx(1, rel=BOUNDS[packed.numbers])


def test_eight_bits_are_those_of_a_quantized_checkpoint():
    rows = weights()
    codes, scales = encoding.fp8_rows(rows)
    matrix = quantize(PACKED_FORMATS["fp8"], rows)
    assert np.array_equal(matrix.codes, codes)
    assert np.array_equal(matrix.row_scales, scales[:, 0])
    codes, scales = encoding.int8_rows(rows)
    matrix = quantize(PACKED_FORMATS["int8"], rows)
    assert np.array_equal(matrix.codes, (codes.astype(int) + 128).astype(np.uint8))
    assert np.array_equal(matrix.row_scales, scales[:, 0])


@pytest.mark.parametrize("name", ["int4", "int4_g64", "int4_g32"])
def test_int4_is_that_of_a_quantized_checkpoint(name):
    packed, rows = PACKED_FORMATS[name], weights()
    words, scales = encoding.int4_groups(rows, group=packed.group)
    octets = words.view(np.uint8)
    codes = np.stack([octets & 15, octets >> 4], -1).reshape(rows.shape)
    matrix = quantize(packed, rows)
    assert np.array_equal(matrix.codes, codes)
    assert np.array_equal(matrix.group_scales.astype(np.float32) * matrix.row_scales[:, None], scales)


def test_a_packed_e4m3_is_seven_bits_of_an_f16():
    codes = np.arange(0x7F, dtype=np.uint8)
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    stored = packed_e4m3(codes)
    assert stored.dtype == np.uint8
    again = (stored.astype(np.uint16) << 7).view(np.float16).astype(np.float32) * np.float32(2.0**-14)
    assert np.array_equal(again * 128, values)
