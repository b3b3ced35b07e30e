"""Recurrent mixers in NumPy, token by token: causal convolution, gated delta rule, gated norm.

A sequence whose first token of the step is at position 0 begins with zeros; any other goes on from its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights, RecurrentStep
from wisp_runtime.ops.reference.dense import rmsnorm, sigmoid, silu

_L2_EPS = 1e-6

DeltaRule = Callable[[Array, Array, Array, Array, Array, Array], Array]
"""A function with the arguments of :func:`delta_rule`, and its result up to rounding."""


def delta_net(
    projected: Array,
    gates: Array,
    weights: DeltaNetWeights,
    spec: DeltaNetSpec,
    step: RecurrentStep,
    *,
    rule: DeltaRule | None = None,
) -> Array:
    """See :meth:`.protocol.recurrent.RecurrentOps.delta_net`; None is the rule :func:`delta_rule`."""
    conv_size = spec.conv_size
    mixed = causal_conv(projected[:, :conv_size], weights.conv, None, step.batch, step.inputs)
    q, k, v = split_heads(mixed, spec)
    beta, decay = delta_gates(gates, weights)
    rule, out = rule or delta_rule, np.empty_like(v)
    for part, slot, is_first in sequences(step.batch):
        state = step.states[slot]
        if is_first:
            state[:] = 0
        out[part] = rule(q[part], k[part], v[part], beta[part], decay[part], state)
    z = projected[:, conv_size:].reshape(v.shape)
    if step.rows is not None:
        out, z = out[step.rows], z[step.rows]
    return gated_norm(out, z, weights.norm, eps=weights.eps).reshape(len(out), -1)


def sequences(batch: Batch) -> Iterator[tuple[slice, int, bool]]:
    """Yield the rows of each sequence that has any, its state's slot, and whether it begins in this step."""
    assert batch.state_slots is not None
    starts = batch.query_starts_host
    for row, slot in enumerate(batch.state_slots.tolist()):
        if starts[row] < starts[row + 1]:
            yield slice(starts[row], starts[row + 1]), slot, int(batch.positions[starts[row]]) == 0


def causal_conv(x: Array, weight: Array, bias: Array | None, batch: Batch, state: Array) -> Array:
    """Convolve each channel over its sequence's tokens, and apply SiLU: ``silu(sum_j w_j x_{t-K+1+j})``.

    Args:
        x: ``[N, C]`` float32; rows may be apart.
        weight: ``[C, K]`` float32, the newest input's tap last.
        bias: ``[C]`` float32, or None.
        batch: the step.
        state: ``[slots, K - 1, C]`` float32, last inputs of each slot's sequence; updated in place.

    Returns:
        ``[N, C]`` float32, a new array.
    """
    taps = np.ascontiguousarray(weight.T)
    kernel, out = len(taps), np.empty(x.shape, np.float32)
    for part, slot, is_first in sequences(batch):
        before = np.zeros_like(state[slot]) if is_first else state[slot]
        padded = np.concatenate((before, x[part]))
        tokens = len(padded) - kernel + 1
        summed = padded[:tokens] * taps[0]
        for tap in range(1, kernel):
            summed += padded[tap : tap + tokens] * taps[tap]
        out[part] = summed
        state[slot] = padded[tokens:]
    if bias is not None:
        out += bias
    return silu(out)


def split_heads(mixed: Array, spec: DeltaNetSpec) -> tuple[Array, Array, Array]:
    """Split ``[N, C]`` into Q ``[N, Hk, Dk]``, K ``[N, Hk, Dk]``, V ``[N, Hv, Dv]``.

    Q and K have norm 1; Q is then scaled by ``Dk ** -0.5``.
    """
    width = spec.key_heads * spec.key_size
    heads = len(mixed), spec.key_heads, spec.key_size
    q, k = mixed[:, :width].reshape(heads), mixed[:, width : 2 * width].reshape(heads)
    v = mixed[:, 2 * width :].reshape(len(mixed), spec.value_heads, spec.value_size)
    return l2norm(q) * np.float32(spec.key_size**-0.5), l2norm(k), v


def l2norm(x: Array) -> Array:
    """Scale the last axis of ``x`` to norm 1."""
    return x / np.sqrt(np.vecdot(x, x) + np.float32(_L2_EPS))[..., None]


def delta_gates(gates: Array, weights: DeltaNetWeights) -> tuple[Array, Array]:
    """Return beta and the logarithm of the decay, ``[N, Hv]`` each, of ``gates`` ``[N, 2 Hv]``."""
    heads = gates.shape[1] // 2
    beta = sigmoid(gates[:, :heads])
    return beta, -np.exp(weights.decay) * softplus(gates[:, heads:] + weights.step_bias)


def softplus(x: Array) -> Array:
    """Return ``log(1 + exp(x))`` without overflow."""
    return np.logaddexp(x, np.float32(0))


def delta_rule(q: Array, k: Array, v: Array, beta: Array, decay: Array, state: Array) -> Array:
    """Read and update one sequence's state, token by token.

    Each token computes ``S *= exp(decay); S += k (beta (v - S^T k))^T; o = S^T q`` in every value head; key
    head j serves the value heads ``j Hv / Hk`` to ``(j + 1) Hv / Hk - 1``.

    Args:
        q, k: ``[T, Hk, Dk]``, Q scaled, K of norm 1.
        v: ``[T, Hv, Dv]``.
        beta, decay: ``[T, Hv]``; ``decay`` is a logarithm.
        state: ``[Hv, Dk, Dv]``, updated in place.

    Returns:
        ``[T, Hv, Dv]``.

    Source: Yang et al. 2024, arXiv:2412.06464, eq. 10.
    """
    shared = v.shape[1] // k.shape[1]
    q, k = (np.repeat(heads, shared, axis=1) for heads in (q, k))
    factors, out = np.exp(decay)[..., None, None], np.empty_like(v)
    for token in range(len(v)):
        key, query = k[token, :, None], q[token, :, None]
        state *= factors[token]
        change = beta[token, :, None] * (v[token] - (key @ state)[:, 0])
        state += k[token, :, :, None] * change[:, None]
        out[token] = (query @ state)[:, 0]
    return out


def gated_norm(x: Array, z: Array, weight: Array, *, eps: float) -> Array:
    """Return ``rmsnorm(x) * silu(z)`` over the last axis: ``[..., Dv]``; the norm is before the gate."""
    normed = rmsnorm(x, weight, eps=eps)
    normed *= silu(z)
    return normed
