import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops import reference  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, to_device, to_host, to_host_float32  # noqa: E402
from wisp_runtime.ops.cuda.elementwise.norms import Norms  # noqa: E402

EPS = 1e-5
HALF_ULP = 2**-8 * (1 + 1e-3)  # of bf16, relative; and the float32 sums' other order

SHAPES = [
    (1, 8),
    (2, 72),
    (5, 576),
    (3, 896),
    (1, 4096),  # the last size with one chunk a thread
    (64, 4096),
    (33, 4104),  # the first with two
    (7, 8192),
    (4, 8200),
    (2, 16384),
    (700, 2048),  # more rows than fit the GPU at once
]


def assert_close(actual, expected):
    assert np.allclose(actual, expected, rtol=HALF_ULP, atol=1e-30, equal_nan=True)


def fresh(device, shape):
    """Fill the buffer that results lie in with NaN."""
    array = device.workspace.array("test.norm", shape, BF16)
    array.data.memset_async(0xFF, array.nbytes)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_rmsnorm_equals_its_reference_within_rounding(device, random, random_bf16, rows, columns):
    x = random.standard_normal((rows, columns), np.float32) * 3
    weight = random_bf16((columns,))
    fresh(device, (rows, columns))
    y = Norms(device).rmsnorm(to_device(x), to_device(weight), eps=EPS, out_name="test.norm")
    assert_close(to_host_float32(y), reference.rmsnorm(x, weight.astype(np.float32), eps=EPS))


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("is_zero_centred", [True, False])
def test_results_of_a_block_are_normed_in_place(device, random_bf16, rows, columns, is_zero_centred):
    x, weight = random_bf16((rows, columns), 3.0), random_bf16((columns,))
    given, options = to_device(x), {"eps": EPS, "is_zero_centred": is_zero_centred}
    assert Norms(device).norm_in_place(given, to_device(weight), **options) is given
    expected = reference.rmsnorm(x.astype(np.float32), weight.astype(np.float32), **options)
    assert_close(to_host_float32(given), expected)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_add_rmsnorm_keeps_the_sum_to_the_bit(device, random, random_bf16, rows, columns):
    residual = random.standard_normal((rows, columns), np.float32) * 3
    x, weight = random_bf16((rows, columns)), random_bf16((columns,))
    fresh(device, (rows, columns))
    summed = to_device(residual)
    y = Norms(device).add_rmsnorm(to_device(x), summed, to_device(weight), eps=EPS, out_name="test.norm")
    expected = reference.add_rmsnorm(x.astype(np.float32), residual, weight.astype(np.float32), eps=EPS)
    assert np.array_equal(to_host(summed), residual)
    assert_close(to_host_float32(y), expected)


@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (3, 2048), (5, 5120), (2, 16384)])
def test_zero_centred_weights_are_one_less_than_the_factor(device, random, random_bf16, rows, columns):
    residual = random.standard_normal((rows, columns), np.float32) * 3
    x, weight = random_bf16((rows, columns)), random_bf16((columns,), 0.1)
    factor, norms = weight.astype(np.float32) + 1, Norms(device)
    options = {"eps": EPS, "out_name": "test.norm", "is_zero_centred": True}
    fresh(device, (rows, columns))
    y = to_host_float32(norms.rmsnorm(to_device(residual), to_device(weight), **options))
    assert_close(y, reference.rmsnorm(residual, factor, eps=EPS))
    y = norms.add_rmsnorm(to_device(x), to_device(residual), to_device(weight), **options)
    assert_close(to_host_float32(y), reference.add_rmsnorm(x.astype(np.float32), residual, factor, eps=EPS))


@pytest.mark.parametrize("columns", [64, 4096, 8192, 16384])
def test_only_the_given_rows_are_touched(device, random, random_bf16, columns):
    residual = random.standard_normal((9, columns), np.float32)
    x, weight = random_bf16((3, columns)), random_bf16((columns,))
    rows = np.array([8, 0, 3], np.int64)
    norms, summed = Norms(device), to_device(residual)
    fresh(device, (3, columns))
    scale = weight.astype(np.float32)
    y = norms.add_rmsnorm(
        to_device(x), summed, to_device(weight), eps=EPS, out_name="test.norm", rows=to_device(rows)
    )
    expected = reference.add_rmsnorm(x.astype(np.float32), residual, scale, eps=EPS, rows=rows)
    assert y.shape == (3, columns)
    assert np.array_equal(to_host(summed), residual)
    assert_close(to_host_float32(y), expected)


def test_sums_into_the_same_rows_one_after_the_other_add_up(device, random, random_bf16):
    residual = random.standard_normal((300, 576), np.float32)
    x, weight = random_bf16((2, 7, 576)), random_bf16((576,))
    rows = np.sort(random.permutation(300)[:7])
    norms, summed, chosen = Norms(device), to_device(residual), to_device(rows, np.int64)
    for added in x:
        y = norms.add_rmsnorm(
            to_device(added), summed, to_device(weight), eps=EPS, out_name="test.norm", rows=chosen
        )
        expected = reference.add_rmsnorm(
            added.astype(np.float32), residual, weight.astype(np.float32), eps=EPS, rows=rows
        )
    assert np.array_equal(to_host(summed), residual)
    assert_close(to_host_float32(y), expected)


def test_no_rows_are_no_work(device, random_bf16):
    x, weight = full_nan((4, 64), np.float32), to_device(random_bf16((64,)))
    rows, none = to_device(np.zeros(0, np.int64)), full_nan((0, 64), BF16)
    y = Norms(device).add_rmsnorm(none, x, weight, eps=EPS, out_name="test.norm", rows=rows)
    assert y.shape == (0, 64)


def test_nan_and_infinity_spoil_their_own_row_alone(device, random, random_bf16):
    x = random.standard_normal((4, 256), np.float32)
    x[1, 7], x[2, 9] = np.nan, np.inf
    weight = random_bf16((256,))
    y = Norms(device).rmsnorm(to_device(x), to_device(weight), eps=EPS, out_name="test.norm")
    with np.errstate(invalid="ignore"):
        assert_close(to_host_float32(y), reference.rmsnorm(x, weight.astype(np.float32), eps=EPS))


def test_a_row_of_zeros_stays_zero(device, random_bf16):
    y = Norms(device).rmsnorm(
        to_device(np.zeros((1, 64), np.float32)), to_device(random_bf16((64,))), eps=EPS, out_name="test.norm"
    )
    assert not to_host_float32(y).any()


def test_arrays_that_do_not_fit_are_refused(device, random_bf16):
    norms, weight = Norms(device), to_device(random_bf16((64,)))
    x = full_nan((4, 64), np.float32)
    refused = (
        (full_nan((4, 60), np.float32), full_nan((60,), BF16)),  # D
        (full_nan((1, 16392), np.float32), full_nan((16392,), BF16)),
        (x.ravel()[1:193].reshape(3, 64), weight),  # 4 bytes past a multiple of 16
        (full_nan((4, 128), np.float32)[:, :64], weight),
        (full_nan((5, 64), BF16), weight),
        (x[:1], full_nan((72,), BF16)),
    )
    for rows, scale in refused:
        with pytest.raises(ShapeError):
            norms.rmsnorm(rows, scale, eps=EPS, out_name="test.norm")
    chosen = full_nan((2,), np.int32)
    with pytest.raises(ShapeError):
        norms.add_rmsnorm(full_nan((2, 64), BF16), x, weight, eps=EPS, out_name="test.norm", rows=chosen)
    with pytest.raises(ShapeError, match="x is"):
        norms.add_rmsnorm(full_nan((3, 64), BF16), x, weight, eps=EPS, out_name="test.norm")
    two = to_device(np.array([1, 3], np.int64))
    with pytest.raises(ShapeError, match="x is"):  # a row for every row of the residual, not for the two
        norms.add_rmsnorm(full_nan((4, 64), BF16), x, weight, eps=EPS, out_name="test.norm", rows=two)
    own = device.workspace.array("test.norm", (4, 64), BF16)
    with pytest.raises(ShapeError, match="must be another"):
        norms.add_rmsnorm(own, x, weight, eps=EPS, out_name="test.norm")
