"""Selective scan of Mamba-2 in chunks of tokens, as GEMMs: what the CPU computes prompts with.

Source: Dao & Gu 2024, arXiv:2405.21060, section 6 (state space duality).
"""

from __future__ import annotations

import numpy as np

from wisp_plan.memory.buffers.cpu import SCAN_TOKENS
from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.mamba import ScanInputs, selective_scan


def scan_in_chunks(inputs: ScanInputs, state: Array) -> Array:
    """Compute :func:`.reference.mamba.selective_scan`, :data:`SCAN_TOKENS` tokens at a time."""
    if len(inputs.x) == 1:
        return selective_scan(inputs, state)
    out = np.empty_like(inputs.x)
    for first in range(0, len(out), SCAN_TOKENS):
        tokens = slice(first, first + SCAN_TOKENS)
        out[tokens] = _scan(inputs.part(tokens), state)
    return out


def _scan(inputs: ScanInputs, state: Array) -> Array:
    """Scan one chunk: ``y_i = sum over j <= i of (C_i B_j) e^{L_i - L_j} step_j x_j + e^{L_i} S C_i``.

    L is the running sum of decays.
    """
    tokens, groups, (heads, size, states) = len(inputs.x), inputs.b.shape[1], state.shape
    total = np.cumsum(inputs.decay, axis=0).T  # [H, T]
    stepped = (inputs.x * inputs.step[..., None]).swapaxes(0, 1)  # [H, T, Dh]
    b, c = (part.swapaxes(0, 1) for part in (inputs.b, inputs.c))  # [G, T, S]
    between = np.where(np.tri(tokens, dtype=bool), total[:, :, None] - total[:, None], -np.inf)
    scores = np.exp(between, out=between).reshape(groups, -1, tokens, tokens)
    scores *= (c @ b.swapaxes(1, 2))[:, None]
    out = scores.reshape(heads, tokens, tokens) @ stepped
    by_group = state.reshape(groups, -1, states)
    before = (c @ by_group.swapaxes(1, 2)).reshape(groups, tokens, -1, size)
    out += np.exp(total)[..., None] * before.swapaxes(1, 2).reshape(heads, tokens, size)
    stepped = stepped * np.exp(total[:, -1:] - total)[..., None]
    state *= np.exp(total[:, -1])[:, None, None]
    state += (stepped.swapaxes(1, 2).reshape(groups, -1, tokens) @ b).reshape(state.shape)
    return out.swapaxes(0, 1)
