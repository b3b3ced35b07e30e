"""Gated DeltaNet against its formulas in float64: convolution, gates, recurrence, norm, states of slots."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from wisp_plan.memory.buffers.cpu import cpu_bytes
from wisp_plan.memory.step import StepSizes
from wisp_plan.presets import shape_spec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.batch import Batch
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops import reference
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights, RecurrentStep

SPEC = DeltaNetSpec(key_heads=2, value_heads=6, key_size=16, value_size=24, kernel=4)
SLOTS = 5
IMPLEMENTATIONS = pytest.mark.parametrize("op", [reference.delta_net, CpuOps(threads=1).delta_net])


def batch_of(chunks: list[tuple[int, int, int]]) -> Batch:
    """Return a step of chunks: tokens of a sequence, its first position, the slot of its state."""
    starts = np.cumsum([0, *(tokens for tokens, _, _ in chunks)]).astype(np.int32)
    positions = [np.arange(first, first + tokens) for tokens, first, _ in chunks]
    contexts = np.array([first + tokens for tokens, first, _ in chunks], np.int32)
    nothing = np.zeros(0, np.int64)
    return Batch(
        tokens=nothing,
        positions=np.concatenate(positions).astype(np.int32),
        slots=nothing,
        query_starts=starts,
        context_lengths=contexts,
        block_tables=nothing,
        logit_rows=nothing,
        query_starts_host=tuple(starts.tolist()),
        context_lengths_host=tuple(contexts.tolist()),
        state_slots=np.array([slot for _, _, slot in chunks], np.int32),
    )


def weights_of(spec: DeltaNetSpec, random) -> DeltaNetWeights:
    def values(*shape, scale=1.0):
        return (scale * random.standard_normal(shape)).astype(np.float32)

    return DeltaNetWeights(
        conv=values(spec.conv_size, spec.kernel, scale=0.5),
        decay=values(spec.value_heads),
        step_bias=values(spec.value_heads),
        norm=1 + values(spec.value_size, scale=0.2),
        eps=1e-6,
    )


def inputs_of(spec: DeltaNetSpec, tokens: int, random):
    width = spec.conv_size + spec.value_heads * spec.value_size
    projected = random.standard_normal((tokens, width)).astype(np.float32)
    return projected, random.standard_normal((tokens, 2 * spec.value_heads)).astype(np.float32)


def states_of(spec: DeltaNetSpec, random, slots: int = SLOTS):
    """Return states as the cache has them: those of a slot contiguous, a layer's of all slots apart."""
    shapes = spec.cache().shapes
    return [random.standard_normal((slots, 2, *shape)).astype(np.float32)[:, 1] for shape in shapes]


def in_float64(projected, gates, weights: DeltaNetWeights, spec: DeltaNetSpec, state, inputs):
    """Compute one sequence as FAMILIES describes it, head by head; return result, state and inputs."""
    x = np.concatenate((inputs, projected[:, : spec.conv_size])).astype(np.float64)
    z = projected[:, spec.conv_size :].reshape(-1, spec.value_heads, spec.value_size).astype(np.float64)
    state, out = state.astype(np.float64), np.empty_like(z)
    for t in range(len(projected)):
        mixed = (x[t : t + spec.kernel] * weights.conv.T).sum(0)
        mixed /= 1 + np.exp(-mixed)
        width = spec.key_heads * spec.key_size
        for head in range(spec.value_heads):
            key_head = head // (spec.value_heads // spec.key_heads)
            q, k = (mixed[first + key_head * spec.key_size :][: spec.key_size] for first in (0, width))
            q, k = (vector / np.sqrt((vector**2).sum() + 1e-6) for vector in (q, k))
            v = mixed[2 * width + head * spec.value_size :][: spec.value_size]
            beta = 1 / (1 + np.exp(-float(gates[t, head])))
            step = np.logaddexp(0, float(gates[t, spec.value_heads + head]) + float(weights.step_bias[head]))
            state[head] *= np.exp(-np.exp(float(weights.decay[head])) * step)
            state[head] += np.outer(k, beta * (v - state[head].T @ k))
            o = state[head].T @ q * spec.key_size**-0.5
            o *= weights.norm / np.sqrt((o**2).mean() + weights.eps)
            out[t, head] = o * z[t, head] / (1 + np.exp(-z[t, head]))
    return out.reshape(len(out), -1), state, x[len(projected) :]


@IMPLEMENTATIONS
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 16, 63, 64, 65, 129])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_sequence_is_computed_as_its_formulas_say(op, tokens, is_first):
    random = np.random.default_rng(tokens)
    weights, (projected, gates) = weights_of(SPEC, random), inputs_of(SPEC, tokens, random)
    states, inputs = states_of(SPEC, random)
    begin = np.zeros_like(states[3]) if is_first else states[3].copy()
    before = np.zeros_like(inputs[3]) if is_first else inputs[3].copy()
    others = [np.delete(array, 3, axis=0) for array in (states, inputs)]
    expected = in_float64(projected, gates, weights, SPEC, begin, before)
    batch = batch_of([(tokens, 0 if is_first else 7, 3)])
    out = op(projected, gates, weights, SPEC, RecurrentStep(batch, states, inputs))
    for computed, exact in zip((out, states[3], inputs[3]), expected, strict=True):
        np.testing.assert_allclose(computed, exact, rtol=2e-4, atol=2e-5)  # sums of some 100 float32
    for array, other in zip((states, inputs), others, strict=True):
        np.testing.assert_array_equal(np.delete(array, 3, axis=0), other)


@IMPLEMENTATIONS
def test_chunks_and_company_change_no_more_than_rounding(op):
    random = np.random.default_rng(1)
    weights = weights_of(SPEC, random)
    lengths = [130, 1, 70, 5]
    whole = [inputs_of(SPEC, length, random) for length in lengths]
    alone = []
    for sequence, length in zip(whole, lengths, strict=True):
        step = RecurrentStep(batch_of([(length, 0, 0)]), *states_of(SPEC, random))
        alone.append(op(*sequence, weights, SPEC, step))
    states, done, parts = states_of(SPEC, random), [0] * 4, [[] for _ in lengths]
    while any(count < length for count, length in zip(done, lengths, strict=True)):
        sizes = [min(int(random.integers(0, 40)), n - d) for d, n in zip(done, lengths, strict=True)]
        step = [
            np.concatenate(
                [sequence[part][d : d + size] for sequence, d, size in zip(whole, done, sizes, strict=True)]
            )
            for part in range(2)
        ]
        batch = batch_of([(size, d, 4 - row) for row, (size, d) in enumerate(zip(sizes, done, strict=True))])
        out = op(*step, weights, SPEC, RecurrentStep(batch, *states))
        for row, (first, last) in enumerate(pairwise(batch.query_starts_host)):
            parts[row].append(out[first:last])
            done[row] += last - first
    for computed, expected in zip(parts, alone, strict=True):
        np.testing.assert_allclose(np.concatenate(computed), expected, rtol=2e-4, atol=2e-5)


@IMPLEMENTATIONS
def test_wanted_rows_are_those_of_all_and_states_are_updated_for_all(op):
    random = np.random.default_rng(2)
    weights, sequence, batch = (
        weights_of(SPEC, random),
        inputs_of(SPEC, 12, random),
        batch_of([(5, 0, 1), (7, 3, 0)]),
    )
    states = states_of(SPEC, random)
    again = [array.copy() for array in states]
    every = op(*sequence, weights, SPEC, RecurrentStep(batch, *states))
    rows = np.array([4, 11])
    wanted = op(*sequence, weights, SPEC, RecurrentStep(batch, *again, rows))
    np.testing.assert_array_equal(wanted, every[rows])
    for array, other in zip(states, again, strict=True):
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("chunks", [[(64, 0, 0)], [(512, 0, 0)], [(128, 0, slot) for slot in range(4)]])
def test_a_step_takes_the_memory_that_the_ledger_counts(chunks):
    model, random = shape_spec("qwen3.6-35b-a3b"), np.random.default_rng(4)
    layer = next(layer for layer in model.layers if layer.mixers == model.mixers(DeltaNetSpec)[:1])
    model = replace(model, layers=(replace(layer, ffn=None),), vocab=8)
    spec, tokens = layer.mixer, sum(count for count, _, _ in chunks)
    states, batch, weights = states_of(spec, random), batch_of(chunks), weights_of(spec, random)
    tracemalloc.start()
    projected = inputs_of(spec, tokens, random)
    CpuOps(threads=1).delta_net(*projected, weights, spec, RecurrentStep(batch, *states))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    peak += 4 * tokens * 2 * model.hidden
    assert peak <= cpu_bytes(model, StepSizes(tokens, len(chunks), 512, 16)) <= 1.6 * peak


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("projected", {"projected": (3, 7)}),
        ("gates", {"gates": (3, 11)}),
        ("states", {"states": (5, 6, 16, 23)}),
        ("inputs", {"inputs": (5, 4, 208)}),
        ("query_starts", {"tokens": 4}),
        ("state_slots", {"slots": None}),
    ],
)
def test_wrong_arrays_are_refused(name, wrong):
    random = np.random.default_rng(3)
    projected, gates = inputs_of(SPEC, 3, random)
    states, inputs = states_of(SPEC, random)
    arrays = {"projected": projected, "gates": gates, "states": states, "inputs": inputs}
    arrays |= {key: np.zeros(shape, np.float32) for key, shape in wrong.items() if key in arrays}
    batch = batch_of([(wrong.get("tokens", 3), 0, 0)])
    if "slots" in wrong:
        batch = replace(batch, state_slots=None)
    weights = weights_of(SPEC, random)
    step = RecurrentStep(batch, arrays["states"], arrays["inputs"])
    with pytest.raises(ShapeError, match=name):
        CpuOps(threads=1).delta_net(arrays["projected"], arrays["gates"], weights, SPEC, step)
