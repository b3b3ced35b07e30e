import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops import reference  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.elementwise.rows import GatherRows  # noqa: E402


def bits(array):
    return array.view(np.uint16)


@pytest.mark.parametrize(
    ("tokens", "columns", "rows"),
    [
        (1, 8, [0]),  # the smallest there is
        (5, 72, [4]),
        (9, 576, [0, 3, 8]),
        (300, 1024, list(range(7, 300, 9))),  # all of a thread block
        (300, 1032, [0, 299]),  # a chunk more
        (70, 16384, [69, 1, 1]),
        (8192, 4096, list(range(0, 8192, 32))),
    ],
)
def test_rows_come_back_to_the_bit(device, random, tokens, columns, rows):
    x = random.integers(0, 1 << 16, (tokens, columns), np.uint16).view(BF16)  # NaN and infinity too
    chosen = np.array(rows, np.int64)
    fresh = device.workspace.array("test.rows", (len(rows) + 1, columns), BF16)
    fresh.data.memset_async(0xFF, fresh.nbytes)
    out = GatherRows(device)(to_device(x), to_device(chosen), out_name="test.rows")
    assert np.array_equal(bits(to_host(out)), bits(reference.gather_rows(x, chosen)))
    assert (bits(to_host(fresh)[-1]) == 0xFFFF).all()  # what lies behind is not written


def test_no_rows_are_no_work(device):
    rows = to_device(np.zeros(0, np.int64))
    assert GatherRows(device)(full_nan((4, 64), BF16), rows, out_name="test.rows").shape == (0, 64)


def test_arrays_that_do_not_fit_are_refused(device):
    gather, x, rows = GatherRows(device), full_nan((4, 64), BF16), to_device([1, 2], np.int64)
    refused = (
        (full_nan((4, 60), BF16), rows),  # columns
        (full_nan((4, 8, 64), BF16), rows),
        (full_nan((4, 64), np.float32), rows),
        (full_nan((4, 128), BF16)[:, :64], rows),
        (x.ravel()[4:196].reshape(3, 64), rows),  # 8 bytes past a multiple of 16
        (x, to_device([1, 2], np.int32)),
        (x, to_device([[1, 2]], np.int64)),
    )
    for array, chosen in refused:
        with pytest.raises(ShapeError):
            gather(array, chosen, out_name="test.rows")
    own = device.workspace.array("test.rows", (4, 64), BF16)
    with pytest.raises(ShapeError, match="must be another"):
        gather(own, rows, out_name="test.rows")
