"""Rules of a request on its tokens that are no grammar: allowed tokens, bad words, least number of tokens."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.engine.constrained.bits import WORD_BITS, clear_bits
from wisp_runtime.engine.transport.messages import SamplingParams


class TokenRules:
    """Rules on the tokens of one answer; they depend on the generated tokens alone.

    Args:
        sampling: parameters of the request.
        end_ids: tokens that end the answer, none of them before ``min_tokens`` others.
    """

    def __init__(self, sampling: SamplingParams, end_ids: Collection[int]) -> None:
        allowed = sampling.allowed_tokens
        self._allowed: Array | None = None if allowed is None else np.frombuffer(allowed, "<u4")
        self._bad_words = sampling.bad_words
        self._ends = np.array(sorted(end_ids), np.int64)
        self._missing_tokens = sampling.min_tokens
        self._last: tuple[int, ...] = ()
        self._remembered = max((len(word) - 1 for word in self._bad_words), default=0)

    @property
    def are_over(self) -> bool:
        """Whether they forbid nothing any more."""
        return self._allowed is None and not self._bad_words and self._missing_tokens <= 0

    def advance(self, token: int) -> None:
        """Take in a generated token."""
        self._missing_tokens -= 1
        if self._remembered:
            self._last = (*self._last, token)[-self._remembered :]

    def restrict(self, words: Array) -> None:
        """Clear the bits of tokens that may not come next.

        An end that is all that could come, as of a grammar that is complete, comes before ``min_tokens``.

        Args:
            words: ``[ceil(V / 32)]`` uint32, tokens that may come by the answer's grammar.
        """
        if self._allowed is not None:
            words &= self._allowed
        if banned := [word[-1] for word in self._bad_words if self._ends_with(word[:-1])]:
            clear_bits(words, np.array(banned, np.int64))
        if self._missing_tokens > 0:
            others = words.copy()
            clear_bits(others, self._ends[self._ends < WORD_BITS * len(words)])
            if others.any():
                words[:] = others

    def _ends_with(self, tokens: tuple[int, ...]) -> bool:
        return not tokens or self._last[-len(tokens) :] == tokens


def rules_of(sampling: SamplingParams, end_ids: Collection[int]) -> TokenRules | None:
    """Return the rules of a request; None if it has none."""
    rules = TokenRules(sampling, end_ids)
    return None if rules.are_over else rules
