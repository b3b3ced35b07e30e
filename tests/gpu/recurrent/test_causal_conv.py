"""Causal convolution on the GPU against its reference: rows, and the states that it leaves."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from delta_case import Tokens, states_on_device  # noqa: E402
from recurrent_cases import HALF_ULP, recurrent_batch, require_close, require_equal  # noqa: E402

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.recurrent.conv import CausalConv  # noqa: E402
from wisp_runtime.ops.reference import recurrent  # noqa: E402

STEPS = {
    "one": [Tokens(1, 7, 2)],
    "decodes": [Tokens(1, slot % 2, slot) for slot in range(32)] + [Tokens(1, 0, -1)] * 3,
    "a prompt": [Tokens(1000, 0, 1)],
    "short": [Tokens(2, 5, 4), Tokens(3, 1, 3), Tokens(15, 0, 0), Tokens(17, 2, 2), Tokens(1, 1, 5)],
    "mixed": [Tokens(1, 3, 3), Tokens(129, 0, 0), Tokens(1, 0, 4), Tokens(70, 33, 1)],
}


@pytest.mark.parametrize("channels", [8, 1032, 8192])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("name", STEPS)
def test_rows_and_states_are_those_of_the_reference(device, channels, has_bias, name):
    random, sequences = np.random.default_rng(channels), STEPS[name]
    live = recurrent_batch([sequence for sequence in sequences if sequence.slot >= 0])
    batch, count = recurrent_batch(sequences, put=to_device), len(live.positions)
    x = random.standard_normal((len(batch.positions), channels + 64)).astype(BF16)
    weight, bias = (random.standard_normal(shape).astype(BF16) for shape in ((channels, 4), channels))
    inputs, wanted = states_on_device(random, 40, 3, channels, dtype=BF16)
    wanted = wanted.astype(np.float32)
    given = (array.astype(np.float32) for array in (x[:count, :channels], weight))
    expected = recurrent.causal_conv(*given, bias.astype(np.float32) if has_bias else None, live, wanted)
    biases = to_device(bias) if has_bias else None
    got = CausalConv(device)(
        to_device(x),
        to_device(weight),
        biases,
        batch,
        inputs,
        has_prefills=any(sequence.count > 1 for sequence in sequences),
        out_name="test.conv",
    )
    got, size = to_host(got)[:count].astype(np.float32), np.abs(expected) + 1e-6 / HALF_ULP
    require_close("y", got, expected, size, HALF_ULP)
    require_equal("inputs", to_host(inputs).astype(np.float32), wanted)


def test_arrays_that_do_not_fit_are_refused(device):
    random, batch = np.random.default_rng(0), recurrent_batch(STEPS["one"], put=to_device)
    inputs, _ = states_on_device(random, 3, 3, 64, dtype=BF16)
    x, weight = to_device(np.zeros((1, 72), BF16)), to_device(np.zeros((64, 4), BF16))
    for arguments in ((x[:, :60], weight, inputs), (x, weight[:, :3], inputs), (x, weight, inputs[:, :2])):
        with pytest.raises(ShapeError):
            CausalConv(device)(*arguments[:2], None, batch, arguments[2], has_prefills=False, out_name="t")
