"""One token of a Gated DeltaNet on the GPU, against the recurrence in float64."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from delta_case import SPECS, DeltaCase, Tokens  # noqa: E402
from recurrent_cases import require_equal  # noqa: E402

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import full_nan, to_host  # noqa: E402
from wisp_runtime.ops.cuda.recurrent.delta_rule import DeltaRule  # noqa: E402

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
@pytest.mark.parametrize("name", STEPS)
def test_a_token_is_one_step_of_the_recurrence(device, spec, has_norm, name):
    case = DeltaCase(SPECS[spec], STEPS[name], seed=len(name))
    case.decode(device, has_norm=has_norm)
    case.check(ONE, state_error=1e-5, has_norm=has_norm)


def test_a_sequence_alone_has_the_bits_that_it_has_in_company(device):
    company = DeltaCase(SPECS["128"], STEPS["32"], seed=1)
    company.decode(device, has_norm=True)
    states, out = to_host(company.states), to_host(company.out)
    for row, sequence in enumerate(STEPS["32"][:4]):
        others = [Tokens(1, 0, -1)] * 31
        alone = DeltaCase(SPECS["128"], [*others[:row], sequence, *others[row:]], seed=1)
        alone.given = replace(company.given, batch=alone.batch)
        alone.decode(device, has_norm=True)
        require_equal("o", to_host(alone.out)[row].view(np.uint16), out[row].view(np.uint16))
        require_equal("state", to_host(alone.states)[sequence.slot], states[sequence.slot])


def test_arrays_that_do_not_fit_are_refused(device):
    case = DeltaCase(SPECS["128"], STEPS["one"])
    rule = DeltaRule(device)
    with pytest.raises(ShapeError, match="states"):
        rule.decode(case.given, case.states[:, :1], case.out, has_norm=True)
    with pytest.raises(ShapeError, match="out"):
        rule.decode(case.given, case.states, full_nan((1, 8), np.float32), has_norm=True)
