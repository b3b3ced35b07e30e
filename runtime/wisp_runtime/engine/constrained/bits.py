"""Sets of tokens as bits of uint32 words."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array

WORD_BITS = 32
ALL = np.uint32(0xFFFFFFFF)


def words_of(vocab: int) -> int:
    """Return the number of words that ``vocab`` tokens take."""
    return -(-vocab // WORD_BITS)


def size_bytes(vocab: int) -> int:
    """Return the bytes of the words that ``vocab`` tokens take."""
    return WORD_BITS // 8 * words_of(vocab)


def clear_from(words: Array, vocab: int) -> None:
    """Clear the bits of the last word that are of no token, from ``vocab`` on."""
    if vocab % WORD_BITS:
        words[-1] &= np.uint32((1 << vocab % WORD_BITS) - 1)


def has_any(words: Array, tokens: Array) -> bool:
    """Return whether the bit of any of ``tokens``, int64, is set."""
    return bool((words[tokens // WORD_BITS] & _bits(tokens)).any())


def set_bits(words: Array, tokens: Array) -> None:
    """Set the bits of ``tokens``, int64."""
    np.bitwise_or.at(words, tokens // WORD_BITS, _bits(tokens))


def clear_bits(words: Array, tokens: Array) -> None:
    """Clear the bits of ``tokens``, int64."""
    np.bitwise_and.at(words, tokens // WORD_BITS, ~_bits(tokens))


def _bits(tokens: Array) -> Array:
    """Return each token's bit in its word."""
    return np.uint32(1) << (tokens % WORD_BITS).astype(np.uint32)
