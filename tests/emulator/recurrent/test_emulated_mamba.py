"""Mamba-2 by its kernels on the emulated GPU, against the recurrence in float64, token by token."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "gpu/recurrent"))
from emulated_gpu import EmulatedGpu, imported, to_gpu
from emulated_kernel import needs_compiler
from mamba_cases import NAMES, SLOTS, SPECS, STEPS, mamba, mamba_weights, scan, time_steps
from recurrent_cases import (
    BF16,
    HALF_ULP,
    Tokens,
    model_with,
    recurrent_batch,
    require_close,
    require_recurrence,
)

from wisp_plan.memory.buffers.recurrent import recurrent as recurrent_buffers
from wisp_plan.memory.step import StepSizes
from wisp_runtime.batch import StepKind
from wisp_runtime.ops.protocol.recurrent import RecurrentStep
from wisp_runtime.ops.reference.mamba import gate_and_norm

pytestmark = needs_compiler
STATE_ERROR = 1e-4  # of the largest element of a head


@pytest.fixture(scope="module")
def cuda():
    """The wrappers, by name."""
    names = "conv", "selective_scan", "mamba_norm", "mamba"
    with imported(*(f"recurrent.{name}" for name in names)) as modules:
        yield dict(zip(names, modules, strict=True))


def apart(random, rows: int, columns: int):
    """Return bf16 rows with NaN between them."""
    memory = np.full((rows, columns + 8), np.nan, BF16)
    memory[:, :columns] = random.standard_normal((rows, columns))
    return to_gpu(memory)[:, :columns]


def slots_of(random, *shape: int, dtype=np.float32):
    return to_gpu(random.standard_normal((SLOTS, 2, *shape)).astype(dtype))[:, 1]


def on_gpu(weights):
    arrays = {name: getattr(weights, name) for name in NAMES}
    return replace(weights, **{name: to_gpu(array) for name, array in arrays.items() if array is not None})


class Case:
    """A step with random channels, time steps and states, after its convolution."""

    def __init__(self, cuda, spec, steps: list[Tokens], seed: int = 0) -> None:
        random, tokens = np.random.default_rng(seed), sum(sequence.count for sequence in steps)
        self.module, self.spec, self.host_batch = cuda["selective_scan"], spec, recurrent_batch(steps)
        weights = mamba_weights(spec, seed)
        xbc = to_gpu(random.standard_normal((tokens, spec.conv_size)).astype(BF16))
        projected = to_gpu(time_steps(spec, tokens, seed))
        self.states = slots_of(random, *spec.cache().shapes[0])
        self.before = self.states.host.copy()
        self.wanted = self.before.astype(np.float64)
        self.expected = scan(xbc.host, projected.host, weights, spec, self.host_batch, self.wanted)
        batch = recurrent_batch(steps, put=to_gpu)
        self.given = self.module.ScanInputs(xbc, projected, on_gpu(weights), spec, batch)
        self.out = to_gpu(np.full((tokens, spec.inner), np.nan, BF16))

    def check(self, *, is_computed: list[bool], state_error: float) -> None:
        """Compare the rows and states of the sequences that were computed; the others are as they were."""
        got = self.out.host.astype(np.float64).reshape(self.expected.shape)
        require_recurrence(self, got, self.expected, self.states.host, is_computed, state_error=state_error)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", ["one token", "decodes", "mixed"])
def test_a_decoded_token_is_one_step_of_the_recurrence(cuda, spec, name) -> None:
    case = Case(cuda, SPECS[spec], STEPS[name])
    case.module.SelectiveScan(EmulatedGpu(seed=1)).decode(case.given, case.states, case.out)
    case.check(is_computed=[count == 1 for count, _, _ in STEPS[name]], state_error=1e-5)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", ["a prompt", "chunks", "mixed"])
def test_chunks_are_as_the_recurrence(cuda, spec, name) -> None:
    case = Case(cuda, SPECS[spec], STEPS[name])
    case.module.SelectiveScan(EmulatedGpu(seed=3)).prefill(case.given, case.states, case.out, min_tokens=2)
    case.check(is_computed=[count > 1 for count, _, _ in STEPS[name]], state_error=STATE_ERROR)


def test_padding_and_single_tokens_can_be_computed_as_prompts_are(cuda) -> None:
    steps = [*STEPS["mixed"], Tokens(1, 0, -1)]
    case = Case(cuda, SPECS["small"], steps)
    case.module.SelectiveScan(EmulatedGpu()).prefill(case.given, case.states, case.out, min_tokens=1)
    case.check(is_computed=[True] * 4 + [False], state_error=STATE_ERROR)


def prefilled(cuda, gpu: EmulatedGpu, parts: list[int]) -> list[np.ndarray]:
    """Compute a prompt of 150 tokens in such parts; return the bits of its result and its state."""
    case, first, results = Case(cuda, SPECS["small"], [Tokens(150, 0, 1)]), 0, []
    for count in parts:
        rows = slice(first, first + count)
        arrays = {name: to_gpu(getattr(case.given, name).host[rows]) for name in ("xbc", "steps")}
        batch = recurrent_batch([Tokens(count, first, 1)], put=to_gpu)
        out = to_gpu(case.out.host[rows])
        given = replace(case.given, **arrays, batch=batch)
        case.module.SelectiveScan(gpu).prefill(given, case.states, out, min_tokens=1)
        results.append(out.host)
        first += count
    return [np.concatenate(results).view(np.uint16), case.states.host]


def test_neither_parts_of_64_nor_stages_nor_the_order_of_events_change_a_bit(cuda) -> None:
    expected, one_stage = prefilled(cuda, EmulatedGpu(), [150]), EmulatedGpu(seed=5)
    one_stage.shared_bytes = 101376
    for gpu, parts in ((EmulatedGpu(), [64, 86]), (EmulatedGpu(seed=9), [128, 22]), (one_stage, [150])):
        got = prefilled(cuda, gpu, parts)
        assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("rows", [None, [8, 0, 3]])
def test_results_are_gated_and_normed_in_the_layers_order(cuda, spec, rows) -> None:
    spec, random = SPECS[spec], np.random.default_rng(5)
    y, z = to_gpu(random.standard_normal((9, spec.inner)).astype(BF16)), apart(random, 9, spec.inner)
    weights, chosen = mamba_weights(spec, 1), slice(None) if rows is None else np.array(rows, np.int64)
    wide = y.host.astype(np.float64), z.host.astype(np.float64) * spec.scales[0]
    expected = gate_and_norm(*wide, weights, spec)[chosen]
    norm = cuda["mamba_norm"].MambaNorm(EmulatedGpu())
    arrays = y, z, None if weights.norm is None else to_gpu(weights.norm), spec
    got = norm(*arrays, None if rows is None else to_gpu(chosen), out_name="gated")
    assert np.allclose(got.host.astype(np.float64), expected, rtol=HALF_ULP + 1e-5, atol=1e-6)


LAUNCHES = {
    "decodes": ["causal_conv", "mamba_decode", "mamba_norm"],
    "a prompt": ["causal_conv", "mamba_scan", "mamba_norm"],
    "mixed": ["causal_conv", "mamba_decode", "mamba_scan", "mamba_norm"],
}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    ("name", "kind"), [(name, None) for name in LAUNCHES] + [("mixed", StepKind.PREFILL)]
)
@pytest.mark.parametrize("rows", [None, [1, 0]])
def test_the_operation_equals_the_reference_in_the_declared_buffers(cuda, spec, name, kind, rows) -> None:
    is_wide, spec, steps = SPECS[spec].state_size > 128, SPECS[spec], STEPS[name]
    random, tokens = np.random.default_rng(7), sum(sequence.count for sequence in steps)
    projected, weights = apart(random, tokens, spec.projected_size), mamba_weights(spec, 2)
    of_states, of_inputs = spec.cache().shapes
    states, inputs = slots_of(random, *of_states), slots_of(random, *of_inputs, dtype=BF16)
    wanted = states.host.astype(np.float64), inputs.host.astype(np.float32)
    expected = mamba(projected.host, weights, spec, recurrent_batch(steps), *wanted)

    model = model_with(spec)
    gpu = EmulatedGpu(declared=recurrent_buffers(model, StepSizes(tokens, len(steps), 256, 16)))
    ops = cuda["mamba"].MambaMixers()
    ops.gpu, ops._mix_of = gpu, cuda["mamba"].BatchMix.of
    ops.load_mamba(model)
    chosen = slice(None) if rows is None else np.array(rows)
    batch = recurrent_batch(steps, kind=kind, put=to_gpu)
    step = RecurrentStep(batch, states, inputs, None if rows is None else to_gpu(chosen))
    got = ops.mamba(projected, on_gpu(weights), spec, step).host.astype(np.float64)

    error = np.linalg.norm(got - expected[chosen], axis=1) / np.linalg.norm(expected[chosen], axis=1)
    assert error.max() < 1e-2
    size = np.abs(wanted[0]).max(axis=(2, 3), keepdims=True)
    require_close("states", states.host, wanted[0], size, 2e-3)  # a convolution may be rounded otherwise
    assert np.array_equal(inputs.host.astype(np.float32), wanted[1])
    if kind is None:
        suffix = "_256" * is_wide
        launched = [f"{op}{suffix}" if op in ("mamba_decode", "mamba_scan") else op for op in LAUNCHES[name]]
        assert gpu.launches == launched
