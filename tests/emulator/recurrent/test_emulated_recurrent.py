"""Gated DeltaNet by its kernels on the emulated GPU, against the recurrence in float64, token by token."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from emulated_gpu import EmulatedGpu, HostArray, imported, to_gpu
from emulated_kernel import needs_compiler
from recurrent_cases import (
    BF16,
    HALF_ULP,
    Tokens,
    delta_gates,
    delta_net,
    delta_rule,
    delta_weights,
    gate_rows,
    heads_error,
    mild_gates,
    model_with,
    recurrent_batch,
    require_equal,
    require_recurrence,
    states_error,
)

from wisp_plan.memory.buffers.recurrent import decode_arrivals
from wisp_plan.memory.buffers.recurrent import recurrent as recurrent_buffers
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.batch import StepKind
from wisp_runtime.ops.cuda.recurrent.arguments import rounds
from wisp_runtime.ops.protocol.recurrent import RecurrentStep
from wisp_runtime.ops.reference import recurrent
from wisp_runtime.ops.reference.packing import pack

pytestmark = needs_compiler
FULL = DeltaNetSpec(key_heads=1, value_heads=2, key_size=128, value_size=128)
SMALL = DeltaNetSpec(key_heads=2, value_heads=6, key_size=24, value_size=40)
SLOTS = 5
STATE_ERROR = 3e-5  # of the largest element of a head; 1e-4 is wanted
PADDING = Tokens(1, 0, -1)
STEPS = {
    "one token": [Tokens(1, 7, 2)],
    "decodes": [Tokens(1, 9, 4), Tokens(1, 0, 0), PADDING],
    "a prompt": [Tokens(65, 0, 1)],
    "chunks": [Tokens(64, 64, 3), Tokens(63, 0, 0), Tokens(2, 5, 2)],
    "mixed": [Tokens(1, 3, 3), Tokens(129, 0, 0), Tokens(1, 0, 4), Tokens(70, 33, 1)],
}


@pytest.fixture(scope="module")
def cuda():
    """The wrappers, by name."""
    names = "conv", "delta_decode", "delta_prefill", "gated_norm", "delta_net"
    with imported(*(f"recurrent.{name}" for name in names)) as modules:
        yield dict(zip(names, modules, strict=True))


def apart(random, rows: int, columns: int) -> HostArray:
    """Return bf16 rows with NaN between them."""
    memory = np.full((rows, columns + 8), np.nan, BF16)
    memory[:, :columns] = random.standard_normal((rows, columns))
    return to_gpu(memory)[:, :columns]


def slots_of(random, *shape: int, dtype=np.float32) -> HostArray:
    return to_gpu(random.standard_normal((SLOTS, 2, *shape)).astype(dtype))[:, 1]


def on_gpu(weights):
    names = "conv", "decay", "step_bias", "norm"
    return replace(weights, **{name: to_gpu(getattr(weights, name)) for name in names})


class Case:
    """A step with random channels, gates and states, after its convolution."""

    def __init__(self, cuda, spec: DeltaNetSpec, sequences: list[Tokens], seed: int = 0) -> None:
        random, tokens = np.random.default_rng(seed), sum(sequence.count for sequence in sequences)
        self.module, self.spec, self.host_batch = cuda["delta_prefill"], spec, recurrent_batch(sequences)
        self.weights, gates = delta_weights(spec, seed), to_gpu(delta_gates(spec, tokens, seed))
        qkv = to_gpu(random.standard_normal((tokens, spec.conv_size)).astype(BF16))
        self.states = slots_of(random, *spec.cache().shapes[0])
        self.before = self.states.host.copy()
        self.wanted = self.before.astype(np.float64)
        self.expected = delta_rule(qkv.host, gates.host, self.weights, spec, self.host_batch, self.wanted)
        batch = recurrent_batch(sequences, put=to_gpu)
        self.given = self.module.DeltaInputs(qkv, gates, on_gpu(self.weights), spec, batch)
        self.out = to_gpu(np.full((tokens, spec.value_heads * spec.value_size), np.nan, BF16))

    def prefill(self, gpu: EmulatedGpu, *, min_tokens: int = 2, warps: int | None = None) -> None:
        prefill = self.module.DeltaPrefill(gpu, warps=warps)
        prefill(self.given, self.states, self.out, min_tokens=min_tokens)

    def check(self, *, is_computed: list[bool], state_error: float) -> None:
        """Compare the rows and states of the sequences that were computed; the others are as they were."""
        check_rows(self, self.expected, is_computed=is_computed, state_error=state_error)


def check_rows(case, expected: np.ndarray, *, is_computed: list[bool], state_error: float) -> None:
    """Compare a case's rows and states."""
    got = case.out.host.astype(np.float64).reshape(expected.shape)
    require_recurrence(case, got, expected, case.states.host, is_computed, state_error=state_error)


def packed(module, matrix: np.ndarray):
    """Tile a matrix as the GPU's weights are."""
    return module.PackedMatrix(to_gpu(pack(matrix)), *matrix.shape)


class DecodeCase:
    """A step with random projections, states and inputs, whose single tokens are decoded.

    What is expected takes the channels of the kernel that convolves prompts.
    """

    def __init__(self, cuda, spec: DeltaNetSpec, sequences: list[Tokens], columns: int | None) -> None:
        random, tokens = np.random.default_rng(3), sum(sequence.count for sequence in sequences)
        self.module, self.spec, self.host_batch = cuda["delta_decode"], spec, recurrent_batch(sequences)
        self.is_decoded = [count == 1 and slot >= 0 for count, _, slot in sequences]
        self.weights, batch = delta_weights(spec, 3), recurrent_batch(sequences, put=to_gpu)
        self.projected = apart(random, tokens, spec.conv_size + spec.value_heads * spec.value_size)
        (of_states, of_inputs), weights = spec.cache().shapes, on_gpu(self.weights)
        self.states, self.inputs = slots_of(random, *of_states), slots_of(random, *of_inputs, dtype=BF16)
        self.before, self.inputs_before = self.states.host.copy(), self.inputs.host.copy()
        gates, given = self._gates(tokens, columns)
        self.wanted, copied = self.before.astype(np.float64), to_gpu(self.inputs_before)
        convolve = cuda["conv"].CausalConv(EmulatedGpu())
        options = {"has_prefills": True, "out_name": "convolved"}
        qkv = convolve(self.projected, weights.conv, None, batch, copied, **options).host
        self.inputs_after = copied.host
        self.o = delta_rule(qkv, gates, self.weights, spec, self.host_batch, self.wanted)
        self.given = self.module.DecodeInputs(self.projected, given, weights, spec, batch)
        self.out = to_gpu(np.full((tokens, spec.value_heads * spec.value_size), np.nan, BF16))

    def _gates(self, tokens: int, columns: int | None):
        """Return gates, and what the kernel takes: the same, or x and a matrix of so many columns."""
        if columns is None:
            gates = delta_gates(self.spec, tokens, 3)
            return gates, to_gpu(gates)
        x, weight = gate_rows(self.spec, tokens, columns, 3)
        given = self.module.GateRows(to_gpu(x), packed(self.module, weight))
        return x.astype(np.float64) @ weight.astype(np.float64).T, given

    def run(self, gpu: EmulatedGpu, *, has_norm: bool) -> None:
        decode = self.module.DeltaDecode(gpu)
        decode(self.given, self.states, self.inputs, self.out, has_norm=has_norm)

    def check(self, *, has_norm: bool) -> None:
        expected = self.o
        if has_norm:
            z = self.projected.host[:, self.spec.conv_size :].astype(np.float64).reshape(expected.shape)
            expected = recurrent.gated_norm(expected, z, self.weights.norm, eps=self.weights.eps)
        check_rows(self, expected, is_computed=self.is_decoded, state_error=1e-5)
        inputs = self.inputs_before.copy()
        for (_, slot, _), is_decoded in zip(
            recurrent.sequences(self.host_batch), self.is_decoded, strict=True
        ):
            inputs[slot] = self.inputs_after[slot] if is_decoded else inputs[slot]
        require_equal("inputs", self.inputs.host.view(np.uint16), inputs.view(np.uint16))


@pytest.mark.parametrize("spec", [FULL, SMALL], ids=["full", "small"])
@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("columns", [None, 72, 1416])
@pytest.mark.parametrize("name", ["one token", "decodes", "mixed"])
def test_a_decoded_token_is_one_step_of_the_recurrence(cuda, spec, name, columns, has_norm) -> None:
    case = DecodeCase(cuda, spec, STEPS[name], columns)
    case.run(EmulatedGpu(seed=1), has_norm=has_norm)
    case.check(has_norm=has_norm)


@pytest.mark.parametrize(("seed", "resident"), [(2, 1), (3, 2), (4, 4), (5, 0)])
def test_all_value_heads_read_the_old_inputs_of_their_key_head(cuda, seed, resident) -> None:
    case, gpu = DecodeCase(cuda, SMALL, STEPS["decodes"], 72), EmulatedGpu(seed=seed, resident=resident)
    case.run(gpu, has_norm=True)
    case.check(has_norm=True)
    arrivals = decode_arrivals(len(STEPS["decodes"]), SMALL.key_heads)
    assert not gpu.zeroed(arrivals.name, arrivals.shape, arrivals.dtype).host.any()


@pytest.mark.parametrize("spec", [FULL, SMALL], ids=["full", "small"])
@pytest.mark.parametrize("name", ["a prompt", "chunks", "mixed"])
def test_chunks_are_as_the_recurrence(cuda, spec, name) -> None:
    case = Case(cuda, spec, STEPS[name])
    case.prefill(EmulatedGpu(seed=3))
    case.check(is_computed=[count > 1 for count, _, _ in STEPS[name]], state_error=STATE_ERROR)


def test_a_single_token_can_be_computed_as_prompts_are(cuda) -> None:
    case = Case(cuda, SMALL, STEPS["mixed"])
    case.prefill(EmulatedGpu(), min_tokens=1)
    case.check(is_computed=[True] * 4, state_error=STATE_ERROR)


def prefilled(cuda, gpu: EmulatedGpu, parts: list[int], warps: int = 8) -> list[np.ndarray]:
    """Compute a prompt of 150 tokens in such parts; return the bits of its result and its state."""
    case, first, results = Case(cuda, SMALL, [Tokens(150, 0, 1)]), 0, []
    whole, given = case.out, case.given
    for count in parts:
        rows = slice(first, first + count)
        batch = recurrent_batch([Tokens(count, first, 1)], put=to_gpu)
        arrays = {name: to_gpu(getattr(given, name).host[rows]) for name in ("qkv", "gates")}
        case.given, case.out = replace(given, **arrays, batch=batch), to_gpu(whole.host[rows])
        case.prefill(gpu, warps=warps)
        results.append(case.out.host)
        first += count
    return [np.concatenate(results).view(np.uint16), case.states.host]


def test_neither_parts_of_64_nor_the_launch_nor_the_order_of_events_change_a_bit(cuda) -> None:
    expected = prefilled(cuda, EmulatedGpu(), [150])
    one_stage = EmulatedGpu(seed=5)
    one_stage.shared_bytes = 101376
    for gpu, parts, warps in (
        (EmulatedGpu(), [64, 86], 8),
        (EmulatedGpu(), [128, 22], 2),
        (one_stage, [150], 4),
    ):
        got = prefilled(cuda, gpu, parts, warps)
        assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("name", ["one token", "decodes", "mixed", "chunks"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_convolution_reads_the_state_and_leaves_its_last_inputs(cuda, name, has_bias) -> None:
    random, channels, sequences = np.random.default_rng(4), 72, STEPS[name]
    batch = recurrent_batch(sequences, put=to_gpu)
    x = apart(random, len(batch.positions), channels)
    weight, bias = (to_gpu(random.standard_normal(shape).astype(BF16)) for shape in ((channels, 4), channels))
    inputs = slots_of(random, 3, channels, dtype=BF16)
    wanted = inputs.host.astype(np.float32)
    live = recurrent_batch([sequence for sequence in sequences if sequence.slot >= 0])
    count = len(live.positions)
    given = (array.astype(np.float32) for array in (x.host[:count], weight.host))
    expected = recurrent.causal_conv(*given, bias.host.astype(np.float32) if has_bias else None, live, wanted)
    got = cuda["conv"].CausalConv(EmulatedGpu(seed=2))(
        x,
        weight,
        bias if has_bias else None,
        batch,
        inputs,
        has_prefills=any(sequence.count > 1 for sequence in sequences),
        out_name="convolved",
    )
    got = got.host.astype(np.float32)
    assert np.allclose(got[:count], expected, rtol=HALF_ULP, atol=1e-6)
    assert np.isnan(got[count:]).all()
    assert np.array_equal(inputs.host.astype(np.float32), wanted)


def test_rows_may_be_farther_apart_in_another_layer(cuda) -> None:
    random, sequences, conv = (
        np.random.default_rng(6),
        STEPS["decodes"],
        cuda["conv"].CausalConv(EmulatedGpu()),
    )
    batch, inputs = recurrent_batch(sequences, put=to_gpu), slots_of(random, 3, 72, dtype=BF16)
    near, weight = apart(random, 3, 72), to_gpu(random.standard_normal((72, 4)).astype(BF16))
    memory = np.full((3, 96), np.nan, BF16)
    memory[:, :72] = near.host
    far, before = to_gpu(memory)[:, :72], inputs.host.copy()
    first = conv(near, weight, None, batch, inputs, has_prefills=False, out_name="convolved").host.copy()
    inputs.host[:] = before
    second = conv(far, weight, None, batch, inputs, has_prefills=False, out_name="convolved").host
    assert np.array_equal(first.view(np.uint16), second.view(np.uint16))


@pytest.mark.parametrize("size", [128, 40, 8])
def test_the_gated_norm_takes_the_rows_that_are_wanted(cuda, size) -> None:
    random, heads = np.random.default_rng(5), 3
    x, z = to_gpu(random.standard_normal((9, heads * size)).astype(BF16)), apart(random, 9, heads * size)
    weight = to_gpu(random.standard_normal(size).astype(np.float32))
    of_heads = (array.host.astype(np.float32).reshape(9, heads, size) for array in (x, z))
    expected = recurrent.gated_norm(*of_heads, weight.host, eps=1e-5).reshape(9, -1)
    for rows in (None, np.array([8, 0, 3], np.int64)):
        chosen = None if rows is None else to_gpu(rows)
        got = cuda["gated_norm"].GatedNorm(EmulatedGpu())(x, z, weight, chosen, eps=1e-5, out_name="gated")
        wanted = expected if rows is None else expected[rows]
        assert np.allclose(got.host.astype(np.float32), wanted, rtol=HALF_ULP, atol=1e-6)


LAUNCHES = {
    "decodes": ["delta_decode"],
    "a prompt": ["causal_conv", "delta_chunks", "delta_scan_4", "gated_norm"],
    "mixed": ["delta_decode", "causal_conv", "delta_chunks", "delta_scan_8", "gated_norm"],
}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, None) for name in LAUNCHES] + [("mixed", StepKind.PREFILL)]
)
@pytest.mark.parametrize("rows", [None, [1, 0]])
def test_the_operation_equals_the_reference_in_the_declared_buffers(cuda, name, kind, rows) -> None:
    spec, sequences = SMALL, [sequence for sequence in STEPS[name] if sequence.slot >= 0]
    random, tokens = np.random.default_rng(7), sum(sequence.count for sequence in sequences)
    width = spec.conv_size + spec.value_heads * spec.value_size
    projected, gates = apart(random, tokens, width), to_gpu(mild_gates(spec, tokens, 1))
    weights, (of_states, of_inputs) = delta_weights(spec, 2), spec.cache().shapes
    states, inputs = slots_of(random, *of_states), slots_of(random, *of_inputs, dtype=BF16)
    wanted = states.host.astype(np.float64), inputs.host.astype(np.float32)
    host_batch = recurrent_batch(sequences)
    expected = delta_net(projected.host, gates.host, weights, spec, host_batch, *wanted)

    model = model_with(spec)
    gpu = EmulatedGpu(declared=recurrent_buffers(model, StepSizes(tokens, len(sequences), 256, 16)))
    ops = cuda["delta_net"].DeltaNetMixers()
    ops.gpu, ops._mix_of = gpu, cuda["delta_net"].BatchMix.of
    ops.load_delta_net(model)
    chosen = slice(None) if rows is None else np.array(rows)
    on_device = None if rows is None else to_gpu(chosen)
    batch = recurrent_batch(sequences, kind=kind, put=to_gpu)
    step = RecurrentStep(batch, states, inputs, on_device)
    got = ops.delta_net(projected, gates, on_gpu(weights), spec, step)

    expected, positions = expected[chosen], host_batch.positions[chosen]
    got = got.host.astype(np.float32).reshape(expected.shape)
    assert heads_error(got, expected, positions) < 1e-2  # o is rounded before a norm of its own
    assert states_error(states.host, wanted[0]) < 2e-3  # a convolution may be rounded otherwise
    assert np.array_equal(inputs.host.astype(np.float32), wanted[1])
    if rows is None and kind is None:
        assert gpu.launches == LAUNCHES[name]


def test_rounds_hold_whole_sequences_and_no_more_chunks_than_there_is_room_for() -> None:
    starts = (0, 1, 129, 130, 330, 394)
    assert rounds(starts, 2, 100) == [(1, 5, 7, 3)]
    assert rounds(starts, 2, 4) == [(1, 2, 2, 1), (3, 4, 4, 1), (4, 5, 1, 1)]
    assert rounds(starts, 1, 5) == [(0, 3, 4, 3), (3, 5, 5, 2)]
