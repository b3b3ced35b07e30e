"""Budget of a step for prompts, and its shares among the sequences that prefill.

Pure. A step computes so many prompt tokens as a number of tokens and an amount of work allow: a token of a
long context costs more than one of a short, because it attends to all before it. Without targets work is
counted in tokens without context; with targets (:mod:`.step_time`) in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from typing import NamedTuple

MIN_PROMPT_TOKENS = 16
"""Prompt tokens of a step that leaves no time for prompts: no target may stop them altogether."""
SHORT_PROMPT_SHARE = 0.5
"""Share of a step's prompt budget that is offered to short prompts first."""
SHORT_PROMPT_RATIO = 4
"""A prompt is short beside one with at least this many times its pending tokens."""


class Prefill(NamedTuple):
    """A sequence that prefills: position of its next token, and tokens from there to its end."""

    start: int
    pending: int

    def is_short_beside(self, other: Prefill) -> bool:
        """Return whether this prefill is short and ``other`` is not."""
        return 0 < self.pending * SHORT_PROMPT_RATIO <= other.pending


class PromptBudget:
    """Tokens and work that a step has for prompts.

    Args:
        tokens: prompt tokens of the step, at most.
        work: work of the step's prompts, at most; the first :data:`MIN_PROMPT_TOKENS` tokens may exceed it.
        token_work: work of a token without its context.
        context_work: work of a token for each token of its context.

    Attributes:
        tokens: tokens left.
    """

    def __init__(
        self, tokens: int, work: float = math.inf, token_work: float = 1.0, context_work: float = 0.0
    ) -> None:
        self.tokens = tokens
        self._work, self._token_work, self._context_work = work, token_work, context_work
        self._guaranteed = MIN_PROMPT_TOKENS
        self._is_spent = False

    @property
    def is_open(self) -> bool:
        """Whether a token is left, and no sequence got fewer than it wanted."""
        return not self._is_spent and self.tokens > 0 and (self._work > 0 or self._guaranteed > 0)

    def grant(self, start: int, wanted: int) -> int:
        """Take up to ``wanted`` tokens from position ``start``, as many as the budget has; return how
        many."""
        tokens = min(wanted, self.tokens)
        work = self._work_of(start, tokens)
        if work > self._work:
            tokens = min(tokens, max(self._fitting(start), self._guaranteed))
            work = self._work_of(start, tokens)
        self.tokens -= tokens
        self._work -= work
        self._guaranteed = max(0, self._guaranteed - tokens)
        self._is_spent = tokens < wanted  # what is left would admit a sequence for a token or none
        return tokens

    def split(self, share: float) -> PromptBudget:
        """Move a share of the budget to a new one."""
        part = PromptBudget(
            int(self.tokens * share), self._work * share, self._token_work, self._context_work
        )
        part._guaranteed = int(self._guaranteed * share)
        self._guaranteed -= part._guaranteed
        self.tokens -= part.tokens
        self._work = self._work - part._work if math.isfinite(self._work) else self._work
        return part

    def merge(self, part: PromptBudget) -> None:
        """Take back what is left of ``part``."""
        self.tokens += part.tokens
        self._guaranteed += part._guaranteed
        self._work = self._work + part._work if math.isfinite(self._work) else self._work

    def _work_of(self, start: int, tokens: int) -> float:
        return tokens * (self._token_work + self._context_work * (start + tokens / 2))

    def _fitting(self, start: int) -> int:
        """Return the most tokens from ``start`` whose work is left: the root of :meth:`_work_of`."""
        if self._work <= 0:
            return 0
        linear = self._token_work + self._context_work * start
        root = math.sqrt(linear * linear + 2 * self._context_work * self._work)
        return int(2 * self._work / (linear + root)) if linear + root > 0 else self.tokens


def share_out(prefills: Items[Prefill], budget: PromptBudget) -> list[int]:
    """Return the tokens that each of ``prefills`` gets of a step; what they leave stays in ``budget``.

    Short prompts beside a long first one come first, the shortest before the others, within their share of
    the budget; the rest goes to all in order. So the first gets half of each step at least, and a short
    prompt does not wait until it is computed. Prompts of about one length go one after the other: they often
    begin alike, and the second then reuses the first one's blocks.

    Args:
        prefills: sequences by priority key.
    """
    tokens = [0] * len(prefills)
    if not prefills:
        return tokens
    short = [index for index, prefill in enumerate(prefills) if prefill.is_short_beside(prefills[0])]
    if short:
        part = budget.split(SHORT_PROMPT_SHARE)
        for index in sorted(short, key=lambda index: prefills[index].pending):
            tokens[index] = part.grant(*prefills[index])
        budget.merge(part)
    for index, (start, pending) in enumerate(prefills):
        if not budget.is_open:
            break
        tokens[index] += budget.grant(start + tokens[index], pending - tokens[index])
    return tokens
