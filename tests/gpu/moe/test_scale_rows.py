"""Rows times the sigmoid of a logit each, against float64."""

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.moe.scale_rows import ScaleRows  # noqa: E402


@pytest.mark.parametrize("tokens", [1, 7, 300])
@pytest.mark.parametrize("columns", [8, 1032, 4096])
@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=["bf16", "f32"])
def test_rows_are_scaled_and_rounded_once(device, random, tokens, columns, dtype):
    x = random.standard_normal((tokens, columns), np.float32).astype(BF16)
    logits = (random.standard_normal((tokens, 1)) * 8).astype(dtype)
    found = to_host(ScaleRows(device)(to_device(x), to_device(logits), out_name="test.scaled"))
    expected = x.astype(np.float64) / (1 + np.exp(-logits.astype(np.float64)))
    assert (np.abs(found.astype(np.float64) - expected) <= np.abs(expected) * 2**-8 * 1.01).all()


def test_logits_of_other_rows_are_refused(device):
    x, logits = to_device(np.ones((3, 16), BF16)), to_device(np.ones((4, 1), BF16))
    with pytest.raises(ShapeError, match="logits"):
        ScaleRows(device)(x, logits, out_name="test.scaled")
