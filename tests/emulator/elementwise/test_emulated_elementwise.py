"""Activations and scaling by their kernels on the emulated GPU, against NumPy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from emulated_gpu import EmulatedGpu, imported, to_gpu
from emulated_kernel import needs_compiler
from recurrent_cases import BF16

from wisp_runtime.errors import ShapeError
from wisp_runtime.ops import reference
from wisp_runtime.ops.protocol.weights.row_permutation import permuted_row
from wisp_runtime.ops.reference.dense import silu

pytestmark = needs_compiler
HALF_ULP = 2**-8 * (1 + 1e-2)  # of bf16, relative, and the fast exponential's error


@pytest.fixture(scope="module")
def cuda():
    """The wrappers, by name."""
    names = "activation", "scaling"
    with imported(*(f"elementwise.{name}" for name in names)) as modules:
        yield dict(zip(names, modules, strict=True))


def interleaved(gate_up: np.ndarray) -> np.ndarray:
    """Return columns in the order of a GEMM whose rows of gate and up are interleaved."""
    columns = gate_up.shape[1]
    out = np.empty_like(gate_up)
    out[:, permuted_row(np.arange(columns), columns, "gate_up_interleaved")] = gate_up
    return out


EXPECTED = {
    "gelu": lambda x, _: reference.gelu_mul(x),
    "silu": lambda x, scale: silu(np.float32(scale) * x[:, : x.shape[1] // 2]) * x[:, x.shape[1] // 2 :],
    "relu2": lambda x, _: reference.relu2(x.copy()),
}


@pytest.mark.parametrize("function", EXPECTED)
@pytest.mark.parametrize(("tokens", "inner"), [(1, 8), (3, 1032), (5, 72)])
def test_activations_are_those_of_the_reference(cuda, function, tokens, inner) -> None:
    random, gpu = np.random.default_rng(inner), EmulatedGpu(seed=1)
    x = (3 * random.standard_normal((tokens, inner if function == "relu2" else 2 * inner))).astype(BF16)
    x[0, :4] = 100, -100, 1e9, -1e9
    expected = EXPECTED[function](x.astype(np.float32), 0.75)
    if function == "relu2":
        given = gpu.array("swiglu", x.shape, BF16)
        given.host[:] = x
    else:
        given = to_gpu(interleaved(x))
    got = cuda["activation"].Activate(gpu)(given, function, 0.75, out_name="swiglu")
    assert np.allclose(got.host.astype(np.float32), expected, rtol=HALF_ULP, atol=1e-5)


def test_an_activation_in_the_wrong_place_is_refused(cuda) -> None:
    gpu = EmulatedGpu()
    activate, x = cuda["activation"].Activate(gpu), to_gpu(np.zeros((2, 16), BF16))
    for given, function in ((x, "relu2"), (gpu.array("swiglu", (2, 16), BF16), "gelu"), (x[:, :12], "gelu")):
        with pytest.raises(ShapeError):
            activate(given, function, out_name="swiglu")


@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1001), (2, 1024)])
def test_every_element_is_scaled(cuda, dtype, shape) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    given = to_gpu(x)
    got = cuda["scaling"].Scale(EmulatedGpu(seed=2))(given, 25.25)
    assert got is given
    expected = x.astype(np.float32) * np.float32(25.25)
    assert np.array_equal(got.host, expected.astype(dtype))


@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.parametrize("rows", [None, [4, 0, 3]])
def test_scaled_rows_are_added(cuda, dtype, rows) -> None:
    random = np.random.default_rng(4)
    residual = random.standard_normal((5, 1032)).astype(dtype)
    x = random.standard_normal((5 if rows is None else len(rows), 1032)).astype(BF16)
    chosen = None if rows is None else np.array(rows, np.int64)
    expected = residual.astype(np.float64)
    expected[slice(None) if rows is None else chosen] += np.float32(0.3) * x.astype(np.float64)
    given = to_gpu(residual)
    on_gpu = None if rows is None else to_gpu(chosen)
    cuda["scaling"].AddScaled(EmulatedGpu())(to_gpu(x), given, 0.3, on_gpu)
    limit = HALF_ULP if dtype == BF16 else 1e-6
    assert np.allclose(given.host.astype(np.float64), expected, rtol=limit, atol=1e-6)
    if rows is not None:
        assert np.array_equal(given.host[[1, 2]], residual[[1, 2]])
