"""Find an answer that repeats itself for ever: the same few tokens over and over, exactly.

Pure, and cheap enough for every token: one search of the last tokens in a short window.
"""

from __future__ import annotations

from dataclasses import dataclass

STOP_REASON = "repetition_detected"  # of vLLM
TOKEN_BYTES = 4
SEARCHED_TOKENS = 8  # last tokens that are searched for before anything else is compared


@dataclass(frozen=True, slots=True)
class RepetitionRule:
    """Repetition that ends an answer: one pattern ``min_count`` times in a row, and in ``min_tokens`` tokens.

    Attributes:
        min_pattern_tokens, max_pattern_tokens: bounds of the pattern's length.
        min_count: repetitions of it, the first included; at least 2.
        min_tokens: tokens of all repetitions together.
    """

    min_pattern_tokens: int
    max_pattern_tokens: int
    min_count: int
    min_tokens: int = 0

    def needed_tokens(self, pattern_tokens: int) -> int:
        """Return the tokens at the end of an answer that must consist of a pattern of that length."""
        return max(pattern_tokens * self.min_count, self.min_tokens)


THINKING_LOOP = RepetitionRule(min_pattern_tokens=1, max_pattern_tokens=64, min_count=8, min_tokens=256)
"""Repetition that is always a loop: a model that thinks in circles writes the same sentence until it is
stopped, while tables, code and lists differ in a token before 256 of them repeat."""


class RepetitionFinder:
    """Search of one answer. Push every token.

    Args:
        rule: repetition that is searched for.
    """

    def __init__(self, rule: RepetitionRule) -> None:
        sizes = range(rule.min_pattern_tokens, rule.max_pattern_tokens + 1)
        self._rule = rule
        self._needed = [TOKEN_BYTES * rule.needed_tokens(size) for size in sizes]
        self._kept = max(self._needed)
        compared = min(needed - TOKEN_BYTES * size for needed, size in zip(self._needed, sizes, strict=True))
        self._searched = min(compared, TOKEN_BYTES * SEARCHED_TOKENS)
        self._shortest = TOKEN_BYTES * rule.min_pattern_tokens
        self._longest = TOKEN_BYTES * rule.max_pattern_tokens
        self._recent = bytearray()

    def push(self, token: int) -> bool:
        """Add a token; return whether the answer now ends in a repetition."""
        recent = self._recent
        recent += token.to_bytes(TOKEN_BYTES, "little")
        if len(recent) > 2 * self._kept:
            del recent[: -self._kept]
        last = recent[-self._searched :]
        start = len(recent) - self._searched
        end = start - self._shortest + len(last)
        while (place := recent.rfind(last, max(0, start - self._longest), max(0, end))) >= 0:
            if self._repeats(start - place):
                return True
            end = place - 1 + len(last)
        return False

    def restart(self) -> None:
        """Forget the tokens so far."""
        self._recent.clear()

    def _repeats(self, pattern: int) -> bool:
        """Return whether the answer ends in repetitions of its last ``pattern`` bytes, enough of them."""
        if pattern % TOKEN_BYTES:
            return False  # a match across the bounds of tokens
        needed = self._needed[(pattern - self._shortest) // TOKEN_BYTES]
        start = len(self._recent) - needed
        return start >= 0 and self._recent[start + pattern :] == self._recent[start:-pattern]
