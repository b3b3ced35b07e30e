"""Scaling in place, and sums of scaled rows, on the GPU against NumPy."""

import numpy as np
import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.elementwise.scaling import AddScaled, Scale  # noqa: E402

HALF_ULP = 2**-8 * (1 + 1e-3)  # of bf16, relative


@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1001), (600, 4096)])
def test_every_element_is_scaled_in_place(device, random, dtype, shape):
    x = random.standard_normal(shape).astype(dtype)
    given = to_device(x)
    assert Scale(device)(given, 25.25) is given
    assert np.array_equal(to_host(given), (x.astype(np.float32) * np.float32(25.25)).astype(dtype))


@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.parametrize(("tokens", "columns", "rows"), [(5, 1032, None), (600, 4096, [599, 0]), (1, 8, [])])
def test_scaled_rows_are_added(device, random, dtype, tokens, columns, rows):
    residual = random.standard_normal((tokens, columns)).astype(dtype)
    x = random.standard_normal((tokens if rows is None else len(rows), columns)).astype(BF16)
    chosen = slice(None) if rows is None else np.array(rows, np.int64)
    expected, given = residual.astype(np.float64), to_device(residual)
    expected[chosen] += np.float32(0.3) * x.astype(np.float64)
    AddScaled(device)(to_device(x), given, 0.3, None if rows is None else to_device(chosen))
    limit = HALF_ULP if dtype == BF16 else 1e-6
    assert np.allclose(to_host(given).astype(np.float64), expected, rtol=limit, atol=1e-6)


def test_arrays_that_do_not_fit_are_refused(device):
    add, good = AddScaled(device), full_nan((4, 64), np.float32)
    for x, residual, rows in (
        (full_nan((3, 64), BF16), good, None),
        (full_nan((4, 64), np.float32), good, None),
        (full_nan((4, 60), BF16), full_nan((4, 60), np.float32), None),
        (full_nan((1, 64), BF16), good, to_device([1], np.int32)),
    ):
        with pytest.raises(ShapeError):
            add(x, residual, 1.0, rows)
    with pytest.raises(ShapeError):
        Scale(device)(full_nan((4, 64), np.float32)[:, :32], 2.0)
