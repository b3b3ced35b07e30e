"""Tokens that a prompt and its answer have, as a bitmask: the ones that a repetition penalty counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.engine.constrained.bits import WORD_BITS, words_of


class SeenTokens:
    """Set of token ids of a vocabulary; a step copies its words as they are.

    Args:
        vocab: V, number of token ids.
        tokens: first members, each below V.

    Attributes:
        words: ``[ceil(V / 32)]`` uint32, bit set = token seen.
    """

    __slots__ = ("words",)

    def __init__(self, vocab: int, tokens: Sequence[int]) -> None:
        is_seen = np.zeros(words_of(vocab) * WORD_BITS, np.bool_)
        is_seen[np.asarray(tokens, np.int64)] = True
        self.words: Array = np.packbits(is_seen, bitorder="little").view(np.uint32)

    def add(self, token: int) -> None:
        """Add a token."""
        self.words[token // WORD_BITS] |= np.uint32(1 << token % WORD_BITS)
