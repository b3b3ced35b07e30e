"""One token of a Gated DeltaNet on the GPU, against the recurrence in float64."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from delta_case import SPECS, DecodeCase, Tokens  # noqa: E402
from recurrent_cases import require_equal  # noqa: E402

from wisp_plan.spec.delta_net import DeltaNetSpec  # noqa: E402
from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import full_nan, to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.recurrent.delta_decode import DeltaDecode  # noqa: E402

STEPS = {
    "one": [Tokens(1, 7, 2)],
    "at the beginning": [Tokens(1, 0, 2)],
    "three": [Tokens(1, 9, 4), Tokens(1, 0, 0), Tokens(1, 1000, 39)],
    "32": [Tokens(1, 5 * slot, slot) for slot in reversed(range(32))],
    "padding": [Tokens(1, 9, 4), Tokens(1, 3, 0), Tokens(1, 0, -1), Tokens(1, 0, -1)],
    "beside prompts": [Tokens(2, 0, 1), Tokens(1, 8, 7), Tokens(70, 3, 5), Tokens(1, 0, 6)],
}
ONE = range(1, 2)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("columns", [None, 2048, 1416])
@pytest.mark.parametrize("name", STEPS)
def test_a_token_is_one_step_of_the_recurrence(device, spec, has_norm, columns, name):
    case = DecodeCase(device, SPECS[spec], STEPS[name], seed=len(name), columns=columns)
    case.decode(device, has_norm=has_norm)
    case.check(ONE, state_error=1e-5)
    case.check_inputs()


def test_the_inputs_of_many_sequences_are_replaced_after_all_have_read_them(device):
    sequences = [Tokens(1, 5, slot) for slot in range(200)]
    spec = DeltaNetSpec(key_heads=2, value_heads=16, key_size=128, value_size=128)
    case = DecodeCase(device, spec, sequences, slots=200, columns=512)
    for _ in range(3):
        case.decode(device)
        case.check_inputs()
        case.inputs.view(np.uint16)[:] = to_device(case.inputs_before.view(np.uint16))


def test_a_sequence_alone_has_the_bits_that_it_has_in_company(device):
    company = DecodeCase(device, SPECS["128"], STEPS["32"], seed=1, columns=2048)
    company.decode(device, has_norm=True)
    states, out = to_host(company.states), to_host(company.out)
    for row, sequence in enumerate(STEPS["32"][:4]):
        others = [Tokens(1, 0, -1)] * 31
        alone = DecodeCase(
            device, SPECS["128"], [*others[:row], sequence, *others[row:]], seed=1, columns=2048
        )
        alone.given = replace(company.given, batch=alone.batch)
        alone.decode(device, has_norm=True)
        require_equal("o", to_host(alone.out)[row].view(np.uint16), out[row].view(np.uint16))
        require_equal("state", to_host(alone.states)[sequence.slot], states[sequence.slot])


def test_arrays_that_do_not_fit_are_refused(device):
    case = DecodeCase(device, SPECS["128"], STEPS["one"], columns=64)
    decode = DeltaDecode(device)
    with pytest.raises(ShapeError, match="states"):
        decode(case.given, case.states[:, :1], case.inputs, case.out, has_norm=True)
    with pytest.raises(ShapeError, match="inputs"):
        decode(case.given, case.states, case.inputs[:, :2], case.out, has_norm=True)
    with pytest.raises(ShapeError, match="out"):
        decode(case.given, case.states, case.inputs, full_nan((1, 8), np.float32), has_norm=True)
    gates = replace(case.given.gates, weight=replace(case.given.gates.weight, outputs=7))
    with pytest.raises(ShapeError, match="gates"):
        decode(replace(case.given, gates=gates), case.states, case.inputs, case.out, has_norm=True)
