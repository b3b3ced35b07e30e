"""Prompts of a Gated DeltaNet on the GPU, in chunks of 64 tokens, against the recurrence in float64."""

import sys
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from delta_case import SPECS, PrefillCase, Tokens, bits  # noqa: E402
from recurrent_cases import recurrent_batch, require_close, require_equal  # noqa: E402

from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.recurrent.arguments import SCAN_WARPS  # noqa: E402
from wisp_runtime.ops.cuda.recurrent.delta_prefill import DeltaInputs, DeltaPrefill  # noqa: E402

LENGTHS = (2, 63, 64, 65, 129, 1000)
STEPS = {
    **{f"{count} tokens": [Tokens(count, 0, 3)] for count in LENGTHS},
    "goes on": [Tokens(100, 77, 3)],
    "three": [Tokens(64, 64, 3), Tokens(63, 0, 0), Tokens(129, 5, 2)],
    "32": [Tokens(2 + 7 * slot, slot % 3, slot) for slot in range(32)],
    "beside tokens": [
        Tokens(1, 3, 3),
        Tokens(129, 0, 0),
        Tokens(1, 0, 4),
        Tokens(70, 33, 1),
        Tokens(1, 1, 6),
    ],
}
STATE_ERROR = 3e-5  # of the largest element of a head; 1e-4 is wanted


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", STEPS)
def test_chunks_are_as_the_recurrence(device, spec, name):
    case = PrefillCase(SPECS[spec], STEPS[name], seed=len(name))
    case.prefill(device)
    case.check(range(2, 1 << 20), state_error=STATE_ERROR)


@pytest.mark.parametrize("name", ["beside tokens", "three"])
def test_a_single_token_can_be_computed_as_prompts_are(device, name):
    case = PrefillCase(SPECS["128"], STEPS[name])
    case.prefill(device, min_tokens=1)
    case.check(range(1, 1 << 20), state_error=STATE_ERROR)


@pytest.mark.parametrize("warps", SCAN_WARPS)
def test_the_launch_changes_no_bit(device, warps):
    first, other = (PrefillCase(SPECS["128"], STEPS["three"], seed=4) for _ in range(2))
    first.prefill(device, warps=4)
    other.prefill(device, warps=warps)
    require_equal("o", bits(other.out), bits(first.out))
    require_equal("states", bits(other.states), bits(first.states))


def in_parts(device, case: PrefillCase, parts: list[int]) -> tuple:
    """Compute the case's only sequence in such parts; return the bits of its result and of all states."""
    first, results, given = 0, [], case.given
    for count in parts:
        rows = slice(first, first + count)
        batch = recurrent_batch([Tokens(count, first, 3)], put=to_device)
        arrays = (
            cp.ascontiguousarray(array[rows].view(np.uint16)).view(BF16) for array in (given.qkv, given.gates)
        )
        out = full_nan((count, case.out.shape[1]), BF16)
        part = DeltaInputs(*arrays, given.weights, given.spec, batch)
        DeltaPrefill(device)(part, case.states, out, min_tokens=1)
        results.append(bits(out))
        first += count
    return np.concatenate(results), bits(case.states)


@pytest.mark.parametrize("parts", [[64, 936], [512, 488], [64] * 15 + [40], [448, 512, 40]], ids=str)
def test_parts_of_multiples_of_64_change_no_bit(device, parts):
    whole, divided = (PrefillCase(SPECS["128"], [Tokens(1000, 0, 3)], seed=9) for _ in range(2))
    expected = in_parts(device, whole, [1000])
    got = in_parts(device, divided, parts)
    for name, *both in zip(("o", "states"), got, expected, strict=True):
        require_equal(name, *both)


def test_a_part_may_begin_anywhere(device):
    case = PrefillCase(SPECS["128"], [Tokens(1000, 0, 3)], seed=9)
    in_parts(device, case, [1, 99, 65, 335, 1, 499])
    wanted, got = case.wanted[3], to_host(case.states[3])
    require_close("state", got, wanted, np.abs(wanted).max(axis=(1, 2), keepdims=True), STATE_ERROR)
