"""Activations of MLPs that no GEMM applies, on the GPU against NumPy."""

import numpy as np
import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops import reference  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, to_device, to_host_float32  # noqa: E402
from wisp_runtime.ops.cuda.elementwise.activation import Activate  # noqa: E402
from wisp_runtime.ops.protocol.weights.row_permutation import permuted_row  # noqa: E402
from wisp_runtime.ops.reference.dense import silu  # noqa: E402

HALF_ULP = 2**-8 * (1 + 1e-2)  # of bf16, relative, and the fast exponential's error
SIZES = [(1, 8), (5, 72), (3, 1032), (32, 2048), (600, 12288)]


def interleaved(gate_up):
    """Return columns in the order of a GEMM whose rows of gate and up are interleaved."""
    columns = gate_up.shape[1]
    out = np.empty_like(gate_up)
    out[:, permuted_row(np.arange(columns), columns, "gate_up_interleaved")] = gate_up
    return out


@pytest.mark.parametrize(("tokens", "inner"), SIZES)
def test_gelu_and_scaled_silu_gate_up(device, random_bf16, tokens, inner):
    x = random_bf16((tokens, 2 * inner), 3.0)
    x[0, :4] = 100, -100, 1e9, -1e9
    wide, activate = x.astype(np.float32), Activate(device)
    expected = {
        "gelu": reference.gelu_mul(wide),
        "silu": silu(np.float32(0.75) * wide[:, :inner]) * wide[:, inner:],
    }
    for function, wanted in expected.items():
        got = activate(to_device(interleaved(x)), function, 0.75, out_name="test.activation")
        assert np.allclose(to_host_float32(got), wanted, rtol=HALF_ULP, atol=2e-5), function


@pytest.mark.parametrize(("tokens", "inner"), SIZES)
def test_relu2_is_in_place(device, random_bf16, tokens, inner):
    x = random_bf16((tokens, inner))
    x[0, :3] = np.nan, -0.0, -100
    given = device.workspace.array("test.relu2", x.shape, BF16)
    given.set(x)
    got = to_host_float32(Activate(device)(given, "relu2", out_name="test.relu2"))
    wanted = reference.relu2(x.astype(np.float32))
    assert np.allclose(got, wanted, rtol=HALF_ULP, atol=0, equal_nan=True)


def test_arrays_that_do_not_fit_are_refused(device):
    activate = Activate(device)
    for x, function in (
        (full_nan((2, 24), BF16), "gelu"),
        (full_nan((2, 16), np.float32), "silu"),
        (full_nan((2, 16), BF16), "relu2"),
        (device.workspace.array("test.activation", (2, 16), BF16), "gelu"),
    ):
        with pytest.raises(ShapeError):
            activate(x, function, out_name="test.activation")
