"""Steps of recurrent mixers, and results in float64: for tests of kernels, emulated and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, Protocol

import ml_dtypes
import numpy as np

from wisp_plan.presets import shape_spec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.layer import MixerSpec
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch, StepKind
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights
from wisp_runtime.ops.reference import recurrent

BF16 = np.dtype(ml_dtypes.bfloat16)
HALF_ULP = 2**-8 * (1 + 1e-3)  # of bf16


class Tokens(NamedTuple):
    """Tokens of one sequence in a step: their number, the first one's position, the slot of the state."""

    count: int
    first: int
    slot: int


def recurrent_batch(
    sequences: list[Tokens],
    *,
    kind: StepKind | None = None,
    put: Callable[[Array], Array] = lambda array: array,
) -> Batch:
    """Make a step of these sequences, whose tokens and blocks are nothing that a recurrent mixer reads."""
    starts = np.cumsum([0, *(sequence.count for sequence in sequences)]).astype(np.int32)
    positions = [np.arange(first, first + count) for count, first, _ in sequences]
    contexts = np.array([first + count for count, first, _ in sequences], np.int32)
    nothing = np.zeros(0, np.int64)
    return Batch(
        tokens=nothing,
        positions=put(np.concatenate(positions).astype(np.int32)),
        slots=nothing,
        query_starts=put(starts),
        context_lengths=put(contexts),
        block_tables=nothing,
        logit_rows=nothing,
        query_starts_host=tuple(starts.tolist()),
        context_lengths_host=tuple(contexts.tolist()),
        kind=kind,
        state_slots=put(np.array([slot for _, _, slot in sequences], np.int32)),
    )


def model_with(mixer: MixerSpec) -> ModelSpec:
    """Return a model whose one layer has this mixer."""
    dense = shape_spec("qwen3-8b")
    return replace(dense, layers=(replace(dense.layers[0], mixer=mixer),))


def delta_weights(spec: DeltaNetSpec, seed: int) -> DeltaNetWeights:
    """Make random weights of a layer, on the host; the convolution's in bf16."""
    random = np.random.default_rng(seed)
    return DeltaNetWeights(
        conv=(0.5 * random.standard_normal((spec.conv_size, spec.kernel))).astype(BF16),
        decay=np.log(random.uniform(0.01, 16, spec.value_heads)).astype(np.float32),
        step_bias=random.standard_normal(spec.value_heads).astype(np.float32),
        norm=(1 + 0.2 * random.standard_normal(spec.value_size)).astype(np.float32),
        eps=1e-6,
    )


def delta_gates(spec: DeltaNetSpec, tokens: int, seed: int) -> Array:
    """Make b and a ``[N, 2 Hv]``: betas near 0, 1 and between, decays from none to e^-100."""
    random = np.random.default_rng(seed)
    b = random.choice([-12.0, 12.0, 0.0], (tokens, spec.value_heads), p=[0.1, 0.2, 0.7])
    a = random.choice([-20.0, -6.0, -3.0, 4.0], (tokens, spec.value_heads), p=[0.1, 0.5, 0.38, 0.02])
    both = np.concatenate((b, a), axis=1) + random.standard_normal((tokens, 2 * spec.value_heads))
    return both.astype(BF16)


def mild_gates(spec: DeltaNetSpec, tokens: int, seed: int) -> Array:
    """Make b and a ``[N, 2 Hv]`` with which a state lives for some tokens."""
    both = np.random.default_rng(seed).standard_normal((tokens, 2 * spec.value_heads))
    both[:, spec.value_heads :] -= 4
    return both.astype(BF16)


def gate_rows(spec: DeltaNetSpec, tokens: int, columns: int, seed: int) -> tuple[Array, Array]:
    """Make x ``[N, D]`` and a matrix ``[2 Hv, D]`` in bf16 whose products are as :func:`mild_gates`."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((tokens, columns))
    x[:, 0] = 1
    weight = random.standard_normal((2 * spec.value_heads, columns)) / np.sqrt(columns)
    weight[spec.value_heads :, 0] = -4
    return x.astype(BF16), weight.astype(BF16)


def delta_rule(
    qkv: Array, gates: Array, weights: DeltaNetWeights, spec: DeltaNetSpec, batch: Batch, states: Array
) -> Array:
    """Return o ``[N, Hv, Dv]`` in float64, token by token, and update ``states`` (float64) in place.

    Rows of padding are NaN.
    """
    q, k, v = recurrent.split_heads(qkv.astype(np.float64), spec)
    beta, decay = recurrent.delta_gates(gates.astype(np.float64), weights)
    out = np.full_like(v, np.nan)
    for part, slot, is_first in recurrent.sequences(batch):
        if slot < 0:
            continue
        if is_first:
            states[slot] = 0
        out[part] = recurrent.delta_rule(q[part], k[part], v[part], beta[part], decay[part], states[slot])
    return out


def delta_net(
    projected: Array,
    gates: Array,
    weights: DeltaNetWeights,
    spec: DeltaNetSpec,
    batch: Batch,
    states: Array,
    inputs: Array,
) -> Array:
    """Return the operation's result ``[N, Hv, Dv]``, its convolution rounded to bf16 as on a GPU.

    ``states`` (float64) and ``inputs`` (float32) are updated in place.
    """
    x, taps = (array.astype(np.float32) for array in (projected[:, : spec.conv_size], weights.conv))
    mixed = recurrent.causal_conv(x, taps, None, batch, inputs).astype(BF16)
    o = delta_rule(mixed, gates, weights, spec, batch, states)
    z = projected[:, spec.conv_size :].astype(np.float64).reshape(o.shape)
    return recurrent.gated_norm(o, z, weights.norm, eps=weights.eps)


def heads_error(got: Array, expected: Array, positions: Array) -> float:
    """Return the largest relative error of a row in a head, of results ``[R, Hv, Dv]``.

    Results at position 0 are left out: v times q k, whose sign may be rounding's.
    """
    error = np.linalg.norm(got - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    return float(error[positions > 0].max(initial=0))


def states_error(got: Array, expected: Array) -> float:
    """Return the largest error of states ``[slots, Hv, Dk, Dv]``, relative to their head's largest."""
    return float((np.abs(got - expected) / np.abs(expected).max(axis=(2, 3), keepdims=True)).max())


def require_close(name: str, got: Array, expected: Array, size: Array, limit: float) -> None:
    """Fail where ``got`` is NaN, or ``limit`` times ``size`` from ``expected``; say how far and where."""
    error = np.abs(got - expected) / size
    error[np.isnan(error)] = np.inf
    at = np.unravel_index(error.argmax(), error.shape)
    where = f"at {[int(index) for index in at]} of {list(error.shape)}: {got[at]}, not {expected[at]}"
    counts = f"{(error >= limit).sum()} past {limit:.2e}, {np.isnan(got).sum()} NaN"
    assert error[at] < limit, f"{name}: error {error[at]:.2e} {where}; {counts}"


def require_equal(name: str, got: Array, expected: Array) -> None:
    """Fail where an element differs; say where first, and how many do."""
    differ = np.argwhere(got != expected)
    if len(differ):
        at = tuple(differ[0])
        where = f"{[int(index) for index in at]} of {list(got.shape)}: {got[at]}, not {expected[at]}"
        raise AssertionError(f"{name}: {len(differ)} differ, the first at {where}")


class Recurrence(Protocol):
    """A step in float64: states before and after it, ``[slots, heads, …]``."""

    host_batch: Batch
    before: Array
    wanted: Array


def require_recurrence(
    case: Recurrence,
    got: Array,
    expected: Array,
    states: Array,
    is_computed: Iterable[bool],
    *,
    state_error: float,
) -> None:
    """Compare the rows and states of the sequences that were computed; the others are as they were.

    Args:
        got, expected: ``[N, heads, …]`` float64; NaN where nothing was written.
        states: all slots, after the step.
        is_computed: whether each sequence was.
        state_error: limit, as a part of a head's largest element.
    """
    untouched = set(range(len(states)))
    for (part, slot, _), wanted in zip(recurrent.sequences(case.host_batch), is_computed, strict=True):
        if not wanted:
            assert np.isnan(got[part]).all()
            continue
        untouched.discard(slot)
        size = np.abs(expected[part]).max(axis=-1, keepdims=True)
        require_close("rows", got[part], expected[part], size, HALF_ULP + 1e-4)
        size = np.abs(case.wanted[slot]).max(axis=(1, 2), keepdims=True)
        require_close(f"state {slot}", states[slot], case.wanted[slot], size, state_error)
    kept = sorted(untouched)
    require_equal("states of others", states[kept], case.before[kept])


def have_counts(sequences: Iterable[Tokens], counts: range) -> list[bool]:
    """Return whether each sequence has a state, and so many tokens."""
    return [slot >= 0 and count in counts for count, _, slot in sequences]
