"""Counter-based random numbers: the same key and counter give the same bits on any device, in any batch.

Source: Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox4x32-10.
"""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counters: Array, key: tuple[int, int]) -> Array:
    """Return four random words per counter.

    Args:
        counters: ``[C, 4]`` uint32.
        key: two 32-bit words.

    Returns:
        ``[C, 4]`` uint32.
    """
    c0, c1, c2, c3 = counters.T.astype(np.uint64)
    k0, k1 = key
    for _ in range(_ROUNDS):
        even, odd = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (odd >> _HALF) ^ c1 ^ np.uint64(k0),
            odd & _LOW,
            (even >> _HALF) ^ c3 ^ np.uint64(k1),
            even & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + _KEY_STEPS[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def token_words(tokens: Array, seed: int, step: int) -> Array:
    """Return the random word that each token id has at this step of this seed: ``[C]`` uint32.

    The word of token t is word ``t % 4`` of Philox with counter ``(t // 4, 0, step, step >> 32)`` and
    key ``(seed, seed >> 32)``, all truncated to 32 bits. Other tokens cost nothing.
    """
    groups, indices = np.unique(tokens // 4, return_inverse=True)
    counters = np.zeros((len(groups), 4), np.uint32)
    counters[:, 0] = groups
    counters[:, 2:] = step & 0xFFFFFFFF, step >> 32 & 0xFFFFFFFF
    words = philox4x32(counters, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))
    own: Array = words[indices, tokens % 4]
    return own
