"""Layers of Mamba-2 with random weights, and their results in float64; without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from recurrent_cases import BF16, Tokens

from wisp_plan.spec.mamba import MambaSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.protocol.recurrent import MambaWeights
from wisp_runtime.ops.reference import recurrent
from wisp_runtime.ops.reference.mamba import gate_and_norm, scan_inputs, selective_scan

SPECS = {
    "nemotron": MambaSpec(heads=8, head_size=80, state_size=128, groups=2),
    "granite": MambaSpec(heads=8, head_size=64, state_size=128, gating="norm_then_gate"),
    "falcon": MambaSpec(
        heads=8, head_size=128, state_size=256, gating="gate", scales=(0.4, 0.25, 0.35, 0.5, 0.3)
    ),
    "small": MambaSpec(heads=8, head_size=24, state_size=40, groups=4, has_conv_bias=False),
}
STEPS = {
    "one token": [Tokens(1, 7, 2)],
    "decodes": [Tokens(1, 9, 4), Tokens(1, 0, 0), Tokens(1, 33, 3)],
    "a prompt": [Tokens(65, 0, 1)],
    "chunks": [Tokens(64, 64, 3), Tokens(63, 0, 0), Tokens(2, 5, 2)],
    "mixed": [Tokens(1, 3, 3), Tokens(129, 0, 0), Tokens(1, 0, 4), Tokens(70, 33, 1)],
}
SLOTS = 5
NAMES = "conv", "conv_bias", "decay", "step_bias", "skip", "norm"
"""Arrays of :class:`MambaWeights`; some may be None."""


def mamba_weights(spec: MambaSpec, seed: int) -> MambaWeights:
    """Make random weights: heads that forget within a few tokens, and within a thousand."""
    random = np.random.default_rng(seed)
    bias = (0.3 * random.standard_normal(spec.conv_size)).astype(BF16) if spec.has_conv_bias else None
    norm = None if spec.gating == "gate" else 1 + 0.2 * random.standard_normal(spec.inner)
    return MambaWeights(
        conv=(0.5 * random.standard_normal((spec.conv_size, spec.kernel))).astype(BF16),
        conv_bias=bias,
        decay=np.log(random.uniform(0.5, 16, spec.heads)).astype(np.float32),
        step_bias=random.uniform(-6, -1, spec.heads).astype(np.float32),
        skip=random.standard_normal(spec.heads).astype(np.float32),
        norm=None if norm is None else norm.astype(np.float32),
    )


def time_steps(spec: MambaSpec, tokens: int, seed: int) -> Array:
    """Make projected time steps ``[N, H]``; a few are so large that a head forgets all."""
    random = np.random.default_rng(seed)
    steps = random.standard_normal((tokens, spec.heads))
    steps[random.random(steps.shape) < 0.02] = 20
    return steps.astype(BF16)


def scan(
    xbc: Array, steps: Array, weights: MambaWeights, spec: MambaSpec, batch: Batch, states: Array
) -> Array:
    """Return y ``[N, H, Dh]`` in float64, token by token, and update ``states`` (float64) in place.

    Rows of padding are NaN.
    """
    scaled = steps.astype(np.float64) * spec.scales[4]
    inputs = scan_inputs(xbc.astype(np.float64), scaled, weights, spec)
    out = np.full_like(inputs.x, np.nan)
    for part, slot, is_first in recurrent.sequences(batch):
        if slot < 0:
            continue
        if is_first:
            states[slot] = 0
        of_part = inputs.part(part)
        out[part] = selective_scan(of_part, states[slot]) + weights.skip[:, None] * of_part.x
    return out


def mamba(
    projected: Array,
    weights: MambaWeights,
    spec: MambaSpec,
    batch: Batch,
    states: Array,
    inputs: Array,
) -> Array:
    """Return the operation's result ``[N, H Dh]``, what kernels hand over rounded to bf16 as on a GPU.

    ``states`` (float64) and ``inputs`` (float32, without the factors of ``spec.scales``) are updated.
    """
    end = spec.inner + spec.conv_size
    z, mixed, steps = (part.astype(np.float32) for part in np.split(projected, (spec.inner, end), axis=1))
    factors = np.repeat(np.float32(spec.scales[1:4]), (spec.inner, spec.group_size, spec.group_size))
    taps = weights.conv.astype(np.float32) * factors[:, None]
    bias = None if weights.conv_bias is None else weights.conv_bias.astype(np.float32)
    xbc = recurrent.causal_conv(mixed, taps, bias, batch, inputs).astype(BF16)
    y = scan(xbc, steps, weights, spec, batch, states).astype(BF16).astype(np.float64)
    return gate_and_norm(y.reshape(z.shape), z * np.float64(spec.scales[0]), weights, spec)
