"""Mamba-2 on the CPU: the scan in both forms, its slots, its checks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wisp_plan.spec.mamba import MambaSpec
from wisp_runtime.batch import Batch
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.cpu.recurrent.scan_chunks import scan_in_chunks
from wisp_runtime.ops.protocol.recurrent import MambaWeights, RecurrentStep
from wisp_runtime.ops.reference.mamba import ScanInputs, selective_scan

OPS = CpuOps(threads=1)
SPEC = MambaSpec(heads=6, head_size=8, state_size=5, groups=3)
LENGTHS = (1, 2, 63, 64, 65, 129, 400)


def scan_inputs(random, tokens, dtype=np.float64, slowest=0.01):
    heads = tokens, SPEC.heads
    step = random.uniform(slowest, 2, heads)
    decay = -step * random.uniform(slowest, 16, SPEC.heads)  # A of published models: 1 to 16
    b, c = random.standard_normal((2, tokens, SPEC.groups, SPEC.state_size))
    arrays = random.standard_normal((*heads, SPEC.head_size)), step, decay, b, c
    return ScanInputs(*(array.astype(dtype) for array in arrays))


def new_state(random, dtype=np.float64):
    return random.standard_normal((SPEC.heads, SPEC.head_size, SPEC.state_size)).astype(dtype)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_the_scan_in_chunks_equals_the_recurrence(tokens):
    random = np.random.default_rng(tokens)
    inputs, before = scan_inputs(random, tokens), new_state(random)
    states = before.copy(), before.copy()
    expected, found = selective_scan(inputs, states[0]), scan_in_chunks(inputs, states[1])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    np.testing.assert_allclose(states[1], states[0], rtol=0, atol=1e-12 * np.abs(states[0]).max())


@pytest.mark.parametrize("scan", [selective_scan, scan_in_chunks])
@pytest.mark.parametrize("slowest", [1e-4, 1e-1])
def test_a_scan_in_float32_stays_near_that_in_float64(scan, slowest):
    random = np.random.default_rng(0)
    inputs, state = scan_inputs(random, 1000, slowest=slowest), new_state(random)
    rounded = ScanInputs(*(getattr(inputs, name).astype(np.float32) for name in ScanInputs.__slots__))
    found, expected = scan(rounded, state.astype(np.float32)), selective_scan(inputs, state.copy())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_a_state_survives_steps_that_nothing_decays():
    inputs = scan_inputs(np.random.default_rng(0), 200)
    still = replace(inputs, decay=np.zeros_like(inputs.decay))
    state = np.zeros((SPEC.heads, SPEC.head_size, SPEC.state_size))
    scan_in_chunks(still, state)
    b = np.repeat(still.b, SPEC.heads // SPEC.groups, axis=1)
    added = np.einsum("th,thp,ths->hps", still.step, still.x, b)
    np.testing.assert_allclose(state, added, atol=1e-11)


def test_large_time_steps_leave_no_nan():
    inputs = scan_inputs(np.random.default_rng(0), 130, np.float32)
    fast = replace(inputs, decay=inputs.decay * np.float32(1e4))
    for scan in (selective_scan, scan_in_chunks):
        assert np.isfinite(scan(fast, new_state(np.random.default_rng(1), np.float32))).all()


def weights_of(spec, random):
    def normal(*shape):
        return random.standard_normal(shape).astype(np.float32)

    bias = normal(spec.conv_size) if spec.has_conv_bias else None
    norm = None if spec.gating == "gate" else 1 + normal(spec.inner)
    heads = (normal(spec.heads) for _ in range(3))
    return MambaWeights(normal(spec.conv_size, spec.kernel), bias, *heads, norm)


def batch_of(chunks):
    """Return a batch of (slot, first position, tokens)."""
    counts = np.cumsum([0, *(count for _, _, count in chunks)])
    positions = np.concatenate([np.arange(first, first + count) for _, first, count in chunks])
    contexts = tuple(first + count for _, first, count in chunks)
    empty = np.zeros(0, np.int64)
    return Batch(
        tokens=np.zeros(counts[-1], np.int32),
        positions=positions.astype(np.int32),
        slots=empty,
        query_starts=counts.astype(np.int32),
        context_lengths=np.array(contexts, np.int32),
        block_tables=np.zeros((len(chunks), 1), np.int32),
        logit_rows=empty,
        query_starts_host=tuple(counts.tolist()),
        context_lengths_host=contexts,
        state_slots=np.array([slot for slot, _, _ in chunks], np.int32),
    )


def arenas(spec, slots=5):
    return tuple(np.full((slots, *shape), 7, np.float32) for shape in spec.cache().shapes)


@pytest.mark.parametrize("gating", ["gate", "gate_then_norm", "norm_then_gate"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_sequences_of_a_batch_keep_to_their_slots(gating, has_bias):
    spec = replace(SPEC, gating=gating, has_conv_bias=has_bias, scales=(0.5, 1.2, 0.7, 1.0, 2.0))
    random = np.random.default_rng(3)
    weights = weights_of(spec, random)
    projected = random.standard_normal((2, 90, spec.projected_size)).astype(np.float32)
    alone = []
    for sequence in projected:  # each at once, in slot 1
        batch = batch_of([(1, 0, 90)])
        alone.append(OPS.mamba(sequence, weights, spec, RecurrentStep(batch, *arenas(spec))))
    both, got = arenas(spec), np.empty_like(np.stack(alone))
    for spans in [((0, 3), (0, 70)), ((3, 4), (70, 71)), ((4, 90), (71, 90))]:
        chunks = [(slot, first, last - first) for slot, (first, last) in zip((4, 2), spans, strict=True)]
        given = np.concatenate([projected[n, first:last] for n, (first, last) in enumerate(spans)])
        out = OPS.mamba(given, weights, spec, RecurrentStep(batch_of(chunks), *both))
        got[0, slice(*spans[0])], got[1, slice(*spans[1])] = np.split(out, [spans[0][1] - spans[0][0]])
    np.testing.assert_allclose(got, alone, atol=2e-5 * np.abs(alone).max())
    assert all((array[[0, 1, 3]] == 7).all() for array in both)  # slots of others


def test_a_sequence_that_begins_takes_nothing_from_its_slot():
    random = np.random.default_rng(3)
    weights, batch = weights_of(SPEC, random), batch_of([(2, 0, 9)])
    projected = random.standard_normal((9, SPEC.projected_size)).astype(np.float32)
    clean, used = (tuple(array * factor for array in arenas(SPEC)) for factor in (0, 1))
    results = [OPS.mamba(projected, weights, SPEC, RecurrentStep(batch, *slots)) for slots in (clean, used)]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("rows", [[69, 74], [74], []])  # none: a chunk that ends no prompt
def test_some_rows_equal_those_of_all_and_the_state_is_of_all(rows):
    random, rows = np.random.default_rng(5), np.array(rows, np.int64)
    weights, batch = weights_of(SPEC, random), batch_of([(0, 0, 70), (1, 0, 5)])
    projected = random.standard_normal((75, SPEC.projected_size)).astype(np.float32)
    full, some = arenas(SPEC), arenas(SPEC)
    every = OPS.mamba(projected, weights, SPEC, RecurrentStep(batch, *full))
    wanted = OPS.mamba(projected, weights, SPEC, RecurrentStep(batch, *some, rows))
    np.testing.assert_array_equal(wanted, every[rows])
    for kept, expected in zip(some, full, strict=True):
        np.testing.assert_array_equal(kept, expected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"projected": np.zeros((4, SPEC.projected_size + 1), np.float32)},
        {"weights": {"conv": np.zeros((SPEC.conv_size, 3), np.float32)}},
        {"weights": {"decay": np.zeros(5, np.float32)}},
        {"weights": {"norm": None}},
        {"weights": {"norm": np.zeros(8, np.float32)}},
        {"batch": {"state_slots": None}},
        {"batch": {"query_starts_host": (0, 3)}},
        {"states": np.zeros((5, 6, 8, 4), np.float32)},
        {"inputs": np.zeros((5, 4, SPEC.conv_size), np.float32)},
    ],
    ids=lambda wrong: "/".join(wrong),
)
def test_arrays_of_other_shapes_are_refused(wrong):
    weights, batch = weights_of(SPEC, np.random.default_rng(0)), batch_of([(0, 0, 4)])
    states, inputs = arenas(SPEC)
    given = {
        "projected": wrong.get("projected", np.zeros((4, SPEC.projected_size), np.float32)),
        "weights": replace(weights, **wrong.get("weights", {})),
        "spec": SPEC,
        "step": RecurrentStep(
            replace(batch, **wrong.get("batch", {})),
            wrong.get("states", states),
            wrong.get("inputs", inputs),
        ),
    }
    with pytest.raises(ShapeError):
        OPS.mamba(**given)
