"""Quantized matrices on the GPU: packed and rounded as by the references, to the bit."""

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from quantized_matrix import quantized_matrix  # noqa: E402

from wisp_plan.quantization.packed_format import EXPERT_FORMATS, PACKED_FORMATS  # noqa: E402
from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device, to_host, zeros  # noqa: E402
from wisp_runtime.ops.cuda.weights.quantized import (  # noqa: E402
    QuantizedStorage,
    clear_padding,
    pack_quantized,
    quantize_rows,
    scratch_bytes,
)
from wisp_runtime.ops.cuda.weights.rounding import fill_quantized  # noqa: E402
from wisp_runtime.ops.protocol.weights.upload import QuantizedRows  # noqa: E402
from wisp_runtime.ops.reference import quantized_packing as reference  # noqa: E402
from wisp_runtime.ops.reference.quantizers import quantize  # noqa: E402
from wisp_runtime.ops.reference.random import random_values  # noqa: E402

FORMATS = PACKED_FORMATS | EXPERT_FORMATS
EVERY = pytest.mark.parametrize("packed", PACKED_FORMATS.values(), ids=PACKED_FORMATS)
SHAPES = [(64, 256), (80, 384), (1536, 1152), (256, 14336)]
SOURCES = [BF16, np.dtype(np.float16), np.dtype(np.float32)]


def empty(packed, outputs, inputs, permutation="plain"):
    storage = zeros((packed.sections(outputs, inputs)[2],), np.dtype(np.uint8))
    return QuantizedStorage(storage, outputs, inputs, permutation, packed)


def on_gpu(packed, matrix):
    codes = matrix.codes if packed.bits == 8 else matrix.codes[:, ::2] | matrix.codes[:, 1::2] << 4
    rest = matrix.row_scales, matrix.group_scales, matrix.zero_points, matrix.block_scales
    return QuantizedRows(*(None if array is None else to_device(array) for array in (codes, *rest)))


def assert_equal(packed, weight, matrix):
    got = to_host(weight.storage)
    want = reference.pack_quantized(packed, matrix, weight.permutation)
    different = np.flatnonzero(got != want)
    assert not len(different), (
        f"{len(different)} of {len(want)} bytes differ, first at {different[:8].tolist()}"
    )


@pytest.mark.parametrize("packed", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("permutation", ["plain", "gate_up_interleaved"])
def test_rows_are_packed_as_by_the_reference_to_the_bit(device, packed, outputs, inputs, permutation):
    matrix, weight = (
        quantized_matrix(packed, outputs, inputs),
        empty(packed, outputs, inputs, permutation),
    )
    clear_padding(device, weight)
    rows = on_gpu(packed, matrix)
    for first in range(0, outputs, 48):  # chunks cross from gate to up, and a slice's halves come apart
        pack_quantized(device, rows[first : first + 48], weight, first)
    assert_equal(packed, weight, matrix)


@EVERY
@pytest.mark.parametrize("permutation", ["rope_interleaved_128", "rope_interleaved_192"])
def test_heads_are_interleaved(device, packed, permutation):
    matrix, weight = quantized_matrix(packed, 384, 512), empty(packed, 384, 512, permutation)
    clear_padding(device, weight)
    pack_quantized(device, on_gpu(packed, matrix), weight, 0)
    assert_equal(packed, weight, matrix)


@EVERY
@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(1, 128), (33, 1152), (16, 14336), (2, 53248)])
def test_rows_are_rounded_as_by_the_reference_to_the_bit(device, random, packed, source, rows, columns):
    values = random.standard_normal((rows, columns), np.float32) * 2.0 ** random.integers(-14, 2, (rows, 1))
    values[0, : columns // 2] = 0  # groups, or half a row, of zeros
    values[-1] *= random.random(columns) < 0.01
    values = values.astype(source)
    memory = cp.cuda.alloc(scratch_bytes(packed, rows, columns))
    got = quantize_rows(device, to_device(values), packed, memory)
    want = quantize(packed, values.astype(np.float32))
    codes = to_host(got.codes)
    if packed.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(rows, columns)
    assert np.array_equal(to_host(got.row_scales), want.row_scales)
    for name in ("group_scales", "zero_points", "block_scales"):
        mine, theirs = getattr(got, name), getattr(want, name)
        assert (mine is None) == (theirs is None), name
        assert mine is None or np.array_equal(to_host(mine), theirs), name
    wrong = np.argwhere(codes != want.codes)
    assert not len(wrong), f"{len(wrong)} of {codes.size} codes differ, first at {wrong[:4].tolist()}"


@pytest.mark.parametrize("packed", ["fp8", "fp8_block"])
@pytest.mark.parametrize(("code", "reported"), [(0x7E, 0), (0xFE, 0), (0x7F, 1), (0xFF, 1)])
def test_packing_reports_a_nan_among_codes_of_e4m3(device, packed, code, reported):
    packed = PACKED_FORMATS[packed]
    matrix, weight = quantized_matrix(packed, 80, 384), empty(packed, 80, 384)
    matrix.codes[79, 383] = code
    not_finite = zeros((1,), np.dtype(np.int32))
    pack_quantized(device, on_gpu(packed, matrix), weight, 0, not_finite)
    assert_equal(packed, weight, matrix)
    assert to_host(not_finite).tolist() == [reported]


def test_bytes_of_integers_are_never_reported(device):
    packed, not_finite = PACKED_FORMATS["int8"], zeros((1,), np.dtype(np.int32))
    matrix = quantized_matrix(packed, 64, 128)
    matrix.codes[...] = 0xFF
    pack_quantized(device, on_gpu(packed, matrix), empty(packed, 64, 128), 0, not_finite)
    assert to_host(not_finite).tolist() == [0]


@EVERY
@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("wrong", [0.0, np.nan, -np.nan, np.inf, -np.inf], ids=str)
def test_rounding_reports_numbers_that_are_not_finite(device, random, packed, source, wrong):
    values = random.standard_normal((33, 1152), np.float32).astype(source)
    values[32, 1151] = wrong
    not_finite, memory = zeros((1,), np.dtype(np.int32)), cp.cuda.alloc(scratch_bytes(packed, 33, 1152))
    quantize_rows(device, to_device(values), packed, memory, not_finite)
    assert to_host(not_finite).tolist() == [int(wrong != 0.0)]


@EVERY
def test_random_weights_are_those_of_every_device_rounded(device, packed):
    weight = empty(packed, 192, 512, "gate_up_interleaved")
    clear_padding(device, weight)
    fill_quantized(device, weight, 7, 0.0, 0.02)
    values = random_values(0, 192 * 512, 7, mean=0.0, deviation=0.02).reshape(192, 512)
    assert_equal(packed, weight, quantize(packed, values))


@pytest.mark.parametrize(("columns", "packed"), [(24, "fp8"), (192, "int4")])
def test_columns_that_are_no_whole_groups_are_refused(device, columns, packed):
    packed = PACKED_FORMATS[packed]
    with pytest.raises(ShapeError, match="columns of"):
        quantize_rows(device, zeros((1, columns), BF16), packed, cp.cuda.alloc(1 << 16))


def test_rows_beyond_the_matrix_are_refused(device):
    packed = PACKED_FORMATS["fp8"]
    matrix = quantized_matrix(packed, 64, 128)
    with pytest.raises(ShapeError, match="rows 32:96 of a matrix of 64"):
        pack_quantized(device, on_gpu(packed, matrix), empty(packed, 64, 128), 32)
