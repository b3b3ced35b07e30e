"""Mamba-2 in NumPy: causal convolution, selective scan token by token, gate and norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wisp_plan.spec.mamba import MambaSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.recurrent import MambaWeights, RecurrentStep
from wisp_runtime.ops.reference.dense import rmsnorm, silu
from wisp_runtime.ops.reference.recurrent import causal_conv, sequences, softplus


@dataclass(frozen=True, slots=True)
class ScanInputs:
    """Inputs of the scan for some tokens of a sequence.

    Attributes:
        x: ``[T, H, Dh]``.
        step: ``[T, H]``, time steps.
        decay: ``[T, H]``, logarithms of the decays, at most 0.
        b, c: ``[T, G, S]``; a group's heads follow each other.
    """

    x: Array
    step: Array
    decay: Array
    b: Array
    c: Array

    def part(self, tokens: slice) -> ScanInputs:
        """Return the inputs of some of the tokens."""
        of_tokens = self.x[tokens], self.step[tokens], self.decay[tokens], self.b[tokens], self.c[tokens]
        return ScanInputs(*of_tokens)


Scan = Callable[[ScanInputs, Array], Array]
"""``scan(inputs, state)``: ``[T, H, Dh]``; ``state`` ``[H, Dh, S]`` is updated in place."""


def mamba(
    projected: Array,
    weights: MambaWeights,
    spec: MambaSpec,
    step: RecurrentStep,
    *,
    scan: Scan | None = None,
) -> Array:
    """See :meth:`.protocol.recurrent.RecurrentOps.mamba`; ``scan``: a form of :func:`selective_scan`."""
    scan = scan or selective_scan
    z, mixed, time_steps = split(projected, spec)
    convolved = causal_conv(mixed, weights.conv, weights.conv_bias, step.batch, step.inputs)
    scanned = scan_inputs(convolved, time_steps, weights, spec)
    out = np.empty_like(scanned.x)
    for part, slot, is_first in sequences(step.batch):
        state = step.states[slot]
        if is_first:
            state[:] = 0
        out[part] = scan(scanned.part(part), state)
    out += weights.skip[:, None] * scanned.x
    y = out.reshape(len(out), spec.inner)
    if step.rows is not None:
        y, z = y[step.rows], z[step.rows]
    return gate_and_norm(y, z, weights, spec)


def split(projected: Array, spec: MambaSpec) -> tuple[Array, Array, Array]:
    """Return z, the convolution's inputs and time steps of ``projected``, each times its factor."""
    sizes = spec.inner, spec.inner, spec.group_size, spec.group_size, spec.heads
    if any(scale != 1 for scale in spec.scales):
        projected = projected * np.repeat(np.array(spec.scales, projected.dtype), sizes)
    z, mixed, step = np.split(projected, (spec.inner, spec.inner + spec.conv_size), axis=1)
    return z, mixed, step


def scan_inputs(convolved: Array, step: Array, weights: MambaWeights, spec: MambaSpec) -> ScanInputs:
    """Return the scan's inputs of convolved channels ``[N, C]`` and projected time steps ``[N, H]``.

    Time steps have no bounds: ``time_step_limit`` of all published models is (0, infinity).
    """
    x, b, c = np.split(convolved, (spec.inner, spec.inner + spec.group_size), axis=1)
    by_group, step = (len(x), spec.groups, spec.state_size), softplus(step + weights.step_bias)
    heads = x.reshape(len(x), spec.heads, spec.head_size)
    return ScanInputs(heads, step, -np.exp(weights.decay) * step, b.reshape(by_group), c.reshape(by_group))


def selective_scan(inputs: ScanInputs, state: Array) -> Array:
    """Read and update one sequence's state, token by token: ``S = exp(decay) S + (step x) B^T; y = S C``.

    Args:
        inputs: its tokens.
        state: ``[H, Dh, S]``, updated in place.

    Returns:
        ``[T, H, Dh]``.
    """
    shared = state.shape[0] // inputs.b.shape[1]
    b, c = (np.repeat(heads, shared, axis=1) for heads in (inputs.b, inputs.c))
    factors, stepped = np.exp(inputs.decay)[..., None, None], inputs.x * inputs.step[..., None]
    out = np.empty_like(inputs.x)
    for token in range(len(out)):
        state *= factors[token]
        state += stepped[token, :, :, None] * b[token, :, None]
        out[token] = (state @ c[token, :, :, None])[..., 0]
    return out


def gate_and_norm(y: Array, z: Array, weights: MambaWeights, spec: MambaSpec) -> Array:
    """Gate ``y`` ``[N, H Dh]`` by ``silu(z)``, and norm it in groups, in the order of ``spec.gating``."""
    gate = silu(z)
    if weights.norm is None:
        return y * gate
    by_group = spec.groups, spec.inner // spec.groups
    gated = y * gate if spec.gating == "gate_then_norm" else y
    grouped = gated.reshape(len(y), *by_group)
    normed = rmsnorm(grouped, weights.norm.reshape(by_group), eps=spec.norm_eps).reshape(y.shape)
    return normed if spec.gating == "gate_then_norm" else normed * gate
