"""Gated delta rule in chunks of tokens: a few GEMMs a head and chunk instead of a loop over tokens.

Within a chunk the corrections of the tokens solve a triangular system; the state is read and written once a
chunk. Equal to the recurrence (:func:`.reference.recurrent.delta_rule`) up to rounding.

Source: Yang et al. 2024, arXiv:2412.06464, section 3.3, with the notation of eq. 8 to 10.
"""

from __future__ import annotations

import numpy as np

from wisp_plan.memory.buffers.cpu import SCAN_TOKENS
from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.recurrent import delta_rule

_MIN_TOKENS = 4  # below it the loop over tokens is as fast: measured with 4 and 48 heads of 128 channels


def delta_rule_in_chunks(q: Array, k: Array, v: Array, beta: Array, decay: Array, state: Array) -> Array:
    """See :func:`.reference.recurrent.delta_rule`."""
    if len(v) < _MIN_TOKENS:
        return delta_rule(q, k, v, beta, decay, state)
    out = np.empty_like(v)
    shared = v.shape[1] // k.shape[1]
    for first in range(0, len(v), SCAN_TOKENS):
        part = slice(first, first + SCAN_TOKENS)
        queries, keys = (np.repeat(array[part].swapaxes(0, 1), shared, axis=0) for array in (q, k))
        values, betas, decays = (array[part].swapaxes(0, 1) for array in (v, beta, decay))
        out[part] = _chunk(queries, keys, values, betas, decays, state).swapaxes(0, 1)
    return out


def _chunk(q: Array, k: Array, v: Array, beta: Array, decay: Array, state: Array) -> Array:
    """Compute one chunk of c tokens, ``[Hv, c, …]`` each; ``state`` ``[Hv, Dk, Dv]`` is updated in place."""
    tokens, total = v.shape[1], np.cumsum(decay, axis=1, dtype=np.float32)
    is_past = np.tri(tokens, dtype=bool)
    decays = np.exp(np.where(is_past, total[:, :, None] - total[:, None, :], -np.inf))
    since_begin = np.exp(total)[..., None]
    keys = k.swapaxes(1, 2)
    system = np.tril(beta[..., None] * (k @ keys) * decays, -1) + np.eye(tokens, dtype=np.float32)
    wanted = beta[..., None] * (v - since_begin * (k @ state))
    changes = np.linalg.solve(system, wanted)
    out: Array = since_begin * (q @ state) + (q @ keys * decays) @ changes
    until_end = np.exp(total[:, -1:] - total)[..., None]
    state *= since_begin[:, -1:]
    state += (k * until_end).swapaxes(1, 2) @ changes
    return out
