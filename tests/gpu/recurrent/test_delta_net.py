"""The operation that a Gated DeltaNet layer calls, on the GPU against the CPU's reference."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from delta_case import SPECS, Tokens, states_on_device  # noqa: E402
from recurrent_cases import (  # noqa: E402
    delta_net,
    delta_weights,
    heads_error,
    mild_gates,
    model_with,
    recurrent_batch,
    require_equal,
    states_error,
)

from wisp_runtime.batch import StepKind  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.ops import CudaOps  # noqa: E402
from wisp_runtime.ops.protocol.recurrent import RecurrentStep  # noqa: E402

STEPS = {
    "decodes": [Tokens(1, 9, 4), Tokens(1, 0, 0), Tokens(1, 33, 7)],
    "a prompt": [Tokens(200, 0, 1)],
    "mixed": [Tokens(1, 3, 3), Tokens(129, 0, 0), Tokens(1, 0, 4), Tokens(70, 33, 1)],
}


@pytest.mark.parametrize("kind", [None, StepKind.PREFILL])
@pytest.mark.parametrize("rows", [None, [0], [2, 1]])
@pytest.mark.parametrize("name", STEPS)
def test_results_and_states_are_those_of_the_reference(device, name, rows, kind):
    spec, sequences = SPECS["128"], STEPS[name]
    random, tokens = np.random.default_rng(len(name)), sum(sequence.count for sequence in sequences)
    width = spec.conv_size + spec.value_heads * spec.value_size
    projected, gates = random.standard_normal((tokens, width)).astype(BF16), mild_gates(spec, tokens, 1)
    weights, shapes = delta_weights(spec, 2), spec.cache().shapes
    states, wanted_states = states_on_device(random, 9, *shapes[0])
    inputs, wanted_inputs = states_on_device(random, 9, *shapes[1], dtype=BF16)
    wanted, host_batch = (
        (wanted_states.astype(np.float64), wanted_inputs.astype(np.float32)),
        recurrent_batch(sequences),
    )
    expected = delta_net(projected, gates, weights, spec, host_batch, *wanted)

    ops = CudaOps(device)
    ops.load_delta_net(model_with(spec))
    names = "conv", "decay", "step_bias", "norm"
    on_device = replace(weights, **{name: to_device(getattr(weights, name)) for name in names})
    batch = recurrent_batch(sequences, kind=kind, put=to_device)
    chosen = slice(None) if rows is None else np.array(rows, np.int64)
    step = RecurrentStep(batch, states, inputs, None if rows is None else to_device(chosen))
    got = ops.delta_net(to_device(projected), to_device(gates), on_device, spec, step)

    expected, positions = expected[chosen], host_batch.positions[chosen]
    got = to_host(got).astype(np.float32).reshape(expected.shape)
    assert heads_error(got, expected, positions) < 1e-2  # o is rounded before a norm of its own
    assert states_error(to_host(states), wanted[0]) < 2e-3  # a convolution may be rounded otherwise
    require_equal("inputs", to_host(inputs).astype(np.float32), wanted[1])
