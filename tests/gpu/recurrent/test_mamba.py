"""Mamba-2 on the GPU: tokens, prompts in chunks, gate and norm, and a layer's operation, against float64."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from mamba_cases import NAMES, SPECS, STEPS, mamba, mamba_weights, scan, time_steps  # noqa: E402
from recurrent_cases import (  # noqa: E402
    BF16,
    HALF_ULP,
    Tokens,
    have_counts,
    model_with,
    recurrent_batch,
    require_close,
    require_equal,
    require_recurrence,
)

from wisp_plan.spec.mamba import MambaSpec  # noqa: E402
from wisp_runtime.batch import StepKind  # noqa: E402
from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import full_nan, to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.ops import CudaOps  # noqa: E402
from wisp_runtime.ops.cuda.recurrent.mamba_norm import MambaNorm  # noqa: E402
from wisp_runtime.ops.cuda.recurrent.selective_scan import ScanInputs, SelectiveScan  # noqa: E402
from wisp_runtime.ops.protocol.recurrent import RecurrentStep  # noqa: E402
from wisp_runtime.ops.reference.mamba import gate_and_norm  # noqa: E402

STATE_ERROR = 1e-4  # of the largest element of a head
SLOTS = 40
LONG = {
    **{f"{count} tokens": [Tokens(count, 0, 3)] for count in (2, 63, 64, 129, 1000)},
    "goes on": [Tokens(100, 77, 3)],
    "32": [Tokens(2 + 7 * slot, slot % 3, slot) for slot in range(32)],
    "padded": [Tokens(1, 3, 3), Tokens(129, 0, 0), Tokens(1, 0, 4), Tokens(70, 33, 1), Tokens(1, 0, -1)],
}


def states_on_device(random, *shape: int, dtype=np.float32):
    """Return ``[slots, *shape]``, slots apart by another layer's, on the GPU; and a copy on the host."""
    memory = to_device(random.standard_normal((SLOTS, 2, *shape)).astype(dtype))
    return memory[:, 1], to_host(memory)[:, 1]


def on_device(weights):
    arrays = {name: getattr(weights, name) for name in NAMES}
    return replace(weights, **{name: to_device(array) for name, array in arrays.items() if array is not None})


class Case:
    """A step with random channels, time steps and states, after its convolution."""

    def __init__(self, spec: MambaSpec, steps: list[Tokens], seed: int = 0) -> None:
        random, tokens = np.random.default_rng(seed), sum(sequence.count for sequence in steps)
        self.steps, self.host_batch, weights = steps, recurrent_batch(steps), mamba_weights(spec, seed)
        xbc = random.standard_normal((tokens, spec.conv_size)).astype(BF16)
        projected = time_steps(spec, tokens, seed)
        self.states, self.before = states_on_device(random, *spec.cache().shapes[0])
        self.wanted = self.before.astype(np.float64)
        self.expected = scan(xbc, projected, weights, spec, self.host_batch, self.wanted)
        batch = recurrent_batch(steps, put=to_device)
        self.given = ScanInputs(to_device(xbc), to_device(projected), on_device(weights), spec, batch)
        self.out = full_nan((tokens, spec.inner), BF16)

    def check(self, counts: range, *, state_error: float) -> None:
        """Compare the rows and states of sequences with so many tokens; the others are as they were."""
        got, states = to_host(self.out).astype(np.float64).reshape(self.expected.shape), to_host(self.states)
        is_computed = have_counts(self.steps, counts)
        require_recurrence(self, got, self.expected, states, is_computed, state_error=state_error)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", ["one token", "decodes", "mixed"])
def test_a_decoded_token_is_one_step_of_the_recurrence(device, spec, name):
    case = Case(SPECS[spec], STEPS[name])
    SelectiveScan(device).decode(case.given, case.states, case.out)
    case.check(range(1, 2), state_error=1e-5)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", LONG)
def test_chunks_are_as_the_recurrence(device, spec, name):
    case = Case(SPECS[spec], LONG[name], seed=len(name))
    SelectiveScan(device).prefill(case.given, case.states, case.out, min_tokens=2)
    case.check(range(2, 1 << 20), state_error=STATE_ERROR)


def test_a_single_token_can_be_computed_as_prompts_are(device):
    case = Case(SPECS["nemotron"], LONG["padded"])
    SelectiveScan(device).prefill(case.given, case.states, case.out, min_tokens=1)
    case.check(range(1, 1 << 20), state_error=STATE_ERROR)


def in_parts(device, parts: list[int]) -> tuple:
    """Compute a prompt of 1,000 tokens in such parts; return the bits of its result and of all states."""
    case, first, results = Case(SPECS["nemotron"], [Tokens(1000, 0, 3)], seed=9), 0, []
    for count in parts:
        rows = slice(first, first + count)
        arrays = {name: getattr(case.given, name)[rows] for name in ("xbc", "steps")}
        out = full_nan((count, case.out.shape[1]), BF16)
        given = replace(case.given, **arrays, batch=recurrent_batch([Tokens(count, first, 3)], put=to_device))
        SelectiveScan(device).prefill(given, case.states, out, min_tokens=1)
        results.append(to_host(out).view(np.uint16))
        first += count
    return np.concatenate(results), to_host(case.states).view(np.uint32)


@pytest.mark.parametrize("parts", [[64, 936], [512, 488], [64] * 15 + [40]], ids=str)
def test_parts_of_multiples_of_64_change_no_bit(device, parts):
    for name, *both in zip(("y", "states"), in_parts(device, parts), in_parts(device, [1000]), strict=True):
        require_equal(name, *both)


NORMS = {
    **SPECS,
    "one group of 8192": MambaSpec(heads=128, head_size=64, state_size=128),
    "no norm of 10240": MambaSpec(heads=128, head_size=80, state_size=128, gating="gate"),
    "last behind": MambaSpec(heads=8, head_size=64, state_size=128, groups=2, gating="norm_then_gate"),
}


@pytest.mark.parametrize("spec", NORMS)
@pytest.mark.parametrize("rows", [None, [8, 0, 3]])
def test_results_are_gated_and_normed_in_the_layers_order(device, random, spec, rows):
    spec, weights = NORMS[spec], mamba_weights(NORMS[spec], 1)
    y = random.standard_normal((9, spec.inner)).astype(BF16)
    projected = random.standard_normal((9, spec.projected_size)).astype(BF16)
    chosen = slice(None) if rows is None else np.array(rows, np.int64)
    z = projected[:, : spec.inner].astype(np.float64) * spec.scales[0]
    expected = gate_and_norm(y.astype(np.float64), z, weights, spec)[chosen]
    arrays = to_device(y), to_device(projected)[:, : spec.inner], on_device(weights).norm, spec
    chosen = None if rows is None else to_device(chosen)
    got = MambaNorm(device)(*arrays, chosen, out_name="test.gated")
    assert np.allclose(to_host(got).astype(np.float64), expected, rtol=HALF_ULP + 1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [None, StepKind.PREFILL])
@pytest.mark.parametrize("rows", [None, [1, 0]])
@pytest.mark.parametrize("name", ["decodes", "a prompt", "mixed"])
@pytest.mark.parametrize("spec", SPECS)
def test_results_and_states_are_those_of_the_reference(device, spec, name, rows, kind):
    spec, steps = SPECS[spec], STEPS[name]
    random, tokens = np.random.default_rng(len(name)), sum(sequence.count for sequence in steps)
    projected, weights = random.standard_normal((tokens, spec.projected_size)), mamba_weights(spec, 2)
    projected, shapes = projected.astype(BF16), spec.cache().shapes
    states, wanted_states = states_on_device(random, *shapes[0])
    inputs, wanted_inputs = states_on_device(random, *shapes[1], dtype=BF16)
    wanted = wanted_states.astype(np.float64), wanted_inputs.astype(np.float32)
    expected = mamba(projected, weights, spec, recurrent_batch(steps), *wanted)

    ops = CudaOps(device)
    ops.load_mamba(model_with(spec))
    chosen = slice(None) if rows is None else np.array(rows, np.int64)
    batch = recurrent_batch(steps, kind=kind, put=to_device)
    step = RecurrentStep(batch, states, inputs, None if rows is None else to_device(chosen))
    got = to_host(ops.mamba(to_device(projected), on_device(weights), spec, step)).astype(np.float64)

    error = np.linalg.norm(got - expected[chosen], axis=1) / np.linalg.norm(expected[chosen], axis=1)
    assert error.max() < 1e-2
    size = np.abs(wanted[0]).max(axis=(2, 3), keepdims=True)
    require_close("states", to_host(states), wanted[0], size, 2e-3)  # a convolution may be rounded otherwise
    require_equal("inputs", to_host(inputs).astype(np.float32), wanted[1])


def test_arrays_that_do_not_fit_are_refused(device):
    case = Case(SPECS["small"], STEPS["decodes"])
    scan_of, given = SelectiveScan(device), case.given
    refused = (
        replace(given, xbc=given.xbc[:, :-8]),
        replace(given, steps=given.steps[:, :4]),
        replace(given, spec=replace(given.spec, head_size=12)),
    )
    for other in refused:
        with pytest.raises(ShapeError):
            scan_of.decode(other, case.states, case.out)
