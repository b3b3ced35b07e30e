import itertools

import ml_dtypes
import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device, to_host, zeros  # noqa: E402
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix, elements, pack_rows, unpack_rows  # noqa: E402
from wisp_runtime.ops.reference.packing import pack  # noqa: E402

SHAPES = [
    (8, 8),  # the smallest
    (64, 64),
    (72, 72),  # a little more than a block, both ways
    (200, 256),  # as many blocks as a thread has in hand
    (151, 264),  # and a little more
    (1536, 576),
    (256, 14336),
]
SOURCES = [BF16, np.dtype(np.float16), np.dtype(np.float32)]


def empty_matrix(outputs, inputs, permutation="plain"):
    return PackedMatrix(zeros((elements(outputs, inputs),), BF16), outputs, inputs, permutation)


def bits(array):
    return np.asarray(array).view(np.uint16)


@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_rows_are_packed_as_by_the_reference_to_the_bit(device, random, source, outputs, inputs):
    rows = random.standard_normal((outputs, inputs), np.float32).astype(source)
    weight = empty_matrix(outputs, inputs)
    pack_rows(device, to_device(rows), weight, 0)
    assert np.array_equal(bits(to_host(weight.storage)), bits(pack(rows.astype(BF16))))
    back = unpack_rows(device, weight, 0, outputs)
    assert np.array_equal(bits(to_host(back)), bits(rows.astype(BF16)))


@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize(("half", "inputs"), [(8, 8), (72, 72), (4864, 896)])
def test_gate_and_up_alternate_by_eights(device, random, source, half, inputs):
    rows = random.standard_normal((2 * half, inputs), np.float32).astype(source)
    weight = empty_matrix(2 * half, inputs, "gate_up_interleaved")
    pack_rows(device, to_device(rows), weight, 0)
    assert np.array_equal(bits(to_host(weight.storage)), bits(pack(rows.astype(BF16), "gate_up_interleaved")))
    back = unpack_rows(device, weight, 0, 2 * half)
    assert np.array_equal(bits(to_host(back)), bits(rows.astype(BF16)))


@pytest.mark.parametrize(
    "permutation", ["plain", "gate_up_interleaved", "rope_interleaved_128", "rope_interleaved_192"]
)
def test_chunks_may_begin_anywhere_and_cross_from_half_to_half(device, random_bf16, permutation):
    rows = random_bf16((384, 136))
    weight = empty_matrix(384, 136, permutation)
    boundaries = [0, 1, 63, 64, 130, 191, 193, 300, 384]
    for first, end in reversed(list(itertools.pairwise(boundaries))):
        pack_rows(device, to_device(rows[first:end]), weight, first)
    assert np.array_equal(bits(to_host(weight.storage)), bits(pack(rows, permutation)))
    for first, end in ((0, 1), (63, 161), (187, 197), (300, 384)):
        back = unpack_rows(device, weight, first, end - first)
        assert np.array_equal(bits(to_host(back)), bits(rows[first:end]))


@pytest.mark.parametrize("source", SOURCES[1:], ids=str)
def test_rounding_is_to_nearest_even_and_nan_and_infinity_pass(device, source):
    one = 1 + 2.0**-8  # half way between two bf16; the even one is below, and for 3 * 2^-8 above
    values = [one, 1 + 3 * 2.0**-8, -one, np.inf, -np.inf, np.nan, -0.0, 0.0, 2.0**-24, 65504, 1e-7, -1.5]
    rows = np.resize(np.array(values, source), (16, 24))
    weight = empty_matrix(16, 24)
    pack_rows(device, to_device(rows), weight, 0)
    actual = to_host(unpack_rows(device, weight, 0, 16)).astype(np.float32)
    assert np.array_equal(actual, rows.astype(ml_dtypes.bfloat16).astype(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(actual[:, 6:8]), np.signbit(rows[:, 6:8]))


def test_what_does_not_fit_is_refused(device, random_bf16):
    weight, rows = empty_matrix(64, 72), to_device(random_bf16((10, 72)))
    apart = to_device(random_bf16((10, 144)))[:, :72]
    gate_up = PackedMatrix(
        zeros((elements(72, 72),), BF16), 72, 72, "gate_up_interleaved"
    )  # 72 is no multiple of 16
    short = PackedMatrix(weight.storage[:-64], 64, 72)
    refused = [
        (rows, weight, 55),  # past the end
        (rows, weight, -1),
        (rows[:, :64], weight, 0),  # columns
        (apart, weight, 0),
        (rows.view(np.int16), weight, 0),
        (rows, gate_up, 0),
        (rows, short, 0),
        (to_device(random_bf16((10, 60))), PackedMatrix(weight.storage, 64, 60), 0),  # no multiple of 8
    ]
    for given, matrix, first in refused:
        with pytest.raises(ShapeError):
            pack_rows(device, given, matrix, first)
    with pytest.raises(ShapeError):
        unpack_rows(device, weight, 60, 5)
