import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, to_device, to_host_float32  # noqa: E402
from wisp_runtime.ops.cuda.elementwise.gate import GateHeads  # noqa: E402

HALF_ULP = 2**-8 * (1 + 1e-2)  # of bf16, relative, and the fast exponential's error


def expected(mixed, gate):
    with np.errstate(over="ignore"):
        return mixed.astype(np.float32) / (1 + np.exp(-gate.astype(np.float32)))


@pytest.mark.parametrize(
    ("tokens", "columns", "rows"),
    [
        (1, 8, None),
        (5, 72, [4, 0]),
        (3, 1032, None),  # a chunk more than a thread block
        (32, 6144, None),  # Qwen3.8-27B
        (600, 4096, [599]),
        (600, 4096, None),
    ],
)
def test_results_are_multiplied_by_the_sigmoid_of_their_gate(
    device, random, random_bf16, tokens, columns, rows
):
    mixed = random_bf16((tokens, columns))
    wide = random_bf16((tokens, columns + 64), 4.0)  # between other columns, as in the output of the GEMM
    wide[0, 8:16] = 100, -100, 1e30, -1e30, 0, -0.0, 88, -88
    chosen = None if rows is None else to_device(np.array(rows, np.int64))
    gate = to_device(wide)[:, 8 : columns + 8]
    out = GateHeads(device)(to_device(mixed), gate, chosen, out_name="test.gate")
    want = expected(mixed, wide[:, 8 : columns + 8])
    got = to_host_float32(out)
    assert np.allclose(got, want if rows is None else want[rows], rtol=HALF_ULP, atol=1e-30)


def test_nan_spoils_its_own_channel_alone(device, random_bf16):
    mixed, gate = random_bf16((2, 64)), random_bf16((2, 64))
    gate[1, 7] = np.nan
    out = to_host_float32(GateHeads(device)(to_device(mixed), to_device(gate), None, out_name="test.gate"))
    assert np.argwhere(np.isnan(out)).tolist() == [[1, 7]]


def test_no_rows_are_no_work(device):
    rows = to_device(np.zeros(0, np.int64))
    none = GateHeads(device)(full_nan((4, 64), BF16), full_nan((4, 64), BF16), rows, out_name="test.gate")
    assert none.shape == (0, 64)


def test_arrays_that_do_not_fit_are_refused(device):
    gates, good = GateHeads(device), full_nan((4, 64), BF16)
    refused = (
        (full_nan((4, 60), BF16), full_nan((4, 60), BF16), None),
        (full_nan((4, 128), BF16)[:, :64], good, None),
        (good, full_nan((4, 72), BF16), None),
        (good, full_nan((4, 64), np.float32), None),
        (good, full_nan((4, 68), BF16)[:, :64], None),
        (good, full_nan((4, 128), BF16)[:, 4:68], None),
        (good, good, to_device([1, 2], np.int32)),
    )
    for mixed, gate, rows in refused:
        with pytest.raises(ShapeError):
            gates(mixed, gate, rows, out_name="test.gate")
