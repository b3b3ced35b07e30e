"""Gated norm on the GPU against its reference."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[2]))
from recurrent_cases import HALF_ULP, require_close  # noqa: E402

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.recurrent.gated_norm import GatedNorm  # noqa: E402
from wisp_runtime.ops.reference import recurrent  # noqa: E402


@pytest.mark.parametrize(("heads", "size"), [(1, 8), (3, 40), (32, 128), (5, 256)])
@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize("rows", [None, [0], [2, 0]])
def test_heads_are_normed_then_gated(device, heads, size, tokens, rows):
    random, width = np.random.default_rng(size), heads * size
    x, both = (random.standard_normal((tokens + 3, width * n)).astype(BF16) for n in (1, 2))
    weight = random.standard_normal(size).astype(np.float32)
    of_heads = (array.astype(np.float32).reshape(-1, heads, size) for array in (x, both[:, width:]))
    expected = recurrent.gated_norm(*of_heads, weight, eps=1e-6).reshape(x.shape)
    chosen = None if rows is None else to_device(np.array(rows, np.int64))
    z = to_device(both)[:, width:]
    got = GatedNorm(device)(to_device(x), z, to_device(weight), chosen, eps=1e-6, out_name="test.gated")
    wanted = expected if rows is None else expected[rows]
    require_close("y", to_host(got).astype(np.float32), wanted, np.abs(wanted) + 1e-6 / HALF_ULP, HALF_ULP)


def test_arrays_that_do_not_fit_are_refused(device):
    x, weight = to_device(np.zeros((2, 24), BF16)), to_device(np.zeros(8, np.float32))
    for z, scale in ((x[:, :16], weight), (x, to_device(np.zeros(12, np.float32)))):
        with pytest.raises(ShapeError):
            GatedNorm(device)(x, z, scale, None, eps=1e-6, out_name="test.gated")
