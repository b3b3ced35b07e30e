"""A rule on thinking: it ends once its budget is spent, and another rule may hold for what follows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.engine.constrained.bits import clear_bits, has_any, set_bits
from wisp_runtime.engine.constrained.constraint import Constraint
from wisp_runtime.engine.constrained.grammar import Grammar
from wisp_runtime.engine.transport.messages import ThinkingRule

LEADING_TOKENS = 4  # of an answer, within which thinking has begun or never does: a newline or two


class _State(Enum):
    BEFORE = auto()  # thinking may begin
    OPENING = auto()  # the rest of the opening marker is forced
    THINKING = auto()
    CLOSING = auto()  # the rest of the closing marker is forced
    ANSWER = auto()


class BoundedThinking:
    """Thinking within a budget, then an answer; see :class:`.constraint.Constraint`.

    Without a rule on the answer, thinking may begin behind a few tokens of whitespace. With one, an answer
    that does not begin with the opening marker follows the rule from its first token on.

    Args:
        rule: markers and budget.
        answer: makes the rule on the answer, at its start; None: every answer is allowed.
        end_ids: tokens that end an answer; none may come within thinking in front of a rule.
    """

    def __init__(
        self,
        rule: ThinkingRule,
        answer: Callable[[], Constraint] | None = None,
        end_ids: Collection[int] = (),
    ) -> None:
        self._rule, self._make_answer = rule, answer
        self._answer = answer() if answer is not None else None
        self._end_ids = np.array(sorted(end_ids), np.int64)
        self._longest = max(map(len, (*rule.openings, *rule.closings)))
        self._last: list[int] = []
        self._seen_tokens = self._thought_tokens = self._matched = 0
        self._answer_allows_opening = False
        self._state = _State.BEFORE
        if rule.is_open:
            self._think()

    @property
    def error(self) -> str:
        """Error of the rule on the answer."""
        return self._answer.error if self._answer is not None else ""

    @property
    def is_over(self) -> bool:
        """Whether every token is allowed from now on."""
        return self._state is _State.ANSWER and self._answer is None and not self._rule.may_reopen

    @property
    def is_free(self) -> bool:
        """Whether the budget, if there is one, is not spent by the next token."""
        if self._make_answer is not None or self._state in (_State.OPENING, _State.CLOSING):
            return False
        return self._rule.max_tokens is None or self._thought_tokens + 1 < self._rule.max_tokens

    def advance(self, token: int) -> None:
        """Take in a token."""
        self._seen_tokens += 1
        self._last = [*self._last, token][-self._longest :]
        match self._state:
            case _State.BEFORE:
                self._begin(token)
            case _State.OPENING:
                self._open()
            case _State.THINKING:
                self._take_thought()
            case _State.CLOSING:
                self._matched += 1
                if self._matched == len(self._rule.closings[0]):
                    self._answer_now()
            case _State.ANSWER if self._answer is not None:
                self._answer.advance(token)
            case _State.ANSWER:
                if self._rule.may_reopen and self._marker_at_end(self._rule.openings):
                    self._think()

    def grammar(self) -> Grammar | None:
        """Return the grammar of the answer, where it holds."""
        holds = self._state in (_State.BEFORE, _State.ANSWER)
        return self._answer.grammar() if holds and self._answer is not None else None

    def allow_more(self, words: Array) -> None:
        """Allow the opening marker where the answer may begin."""
        if self._state is _State.BEFORE:
            opening = np.array([self._opening[self._matched]], np.int64)
            self._answer_allows_opening = has_any(words, opening)
            set_bits(words, opening)

    def fill(self, words: Array) -> None:
        """Force a marker, keep the end out of thinking, or leave it to the rule on the answer."""
        if self._state is _State.OPENING:
            _force(words, self._opening[self._matched])
        elif self._state is _State.CLOSING:
            _force(words, self._rule.closings[0][self._matched])
        elif self._answer is None and self._make_answer is None:
            return
        elif self._state is _State.THINKING:
            clear_bits(words, self._end_ids)
        elif self._answer is not None:
            self._answer.fill(words)
            self.allow_more(words)

    @property
    def _opening(self) -> Sequence[int]:
        return self._rule.openings[0]

    def _begin(self, token: int) -> None:
        if self._answer is not None:
            self._begin_ruled(token, self._answer)
        elif self._marker_at_end(self._rule.openings):
            self._think()
        elif not self._rule.may_reopen and self._seen_tokens >= self._longest + LEADING_TOKENS:
            self._state = _State.ANSWER

    def _begin_ruled(self, token: int, answer: Constraint) -> None:
        """Take in one of the first tokens; those of the opening marker may also be the answer's."""
        if token != self._opening[self._matched]:
            answer.advance(token)
            self._state = _State.ANSWER
            return
        is_marker = not self._answer_allows_opening or len(self._opening) == 1
        if not is_marker:
            answer.advance(token)
        elif len(self._opening) > 1:
            self._state = _State.OPENING
        self._open()

    def _open(self) -> None:
        self._matched += 1
        if self._matched == len(self._opening):
            self._think()

    def _think(self) -> None:
        self._state, self._answer = _State.THINKING, None
        self._check_budget()

    def _take_thought(self) -> None:
        self._thought_tokens += 1
        if marker := self._marker_at_end(self._rule.closings):
            self._thought_tokens -= len(marker)
            self._answer_now()
        else:
            self._check_budget()

    def _check_budget(self) -> None:
        """Have the marker, or the rest of it, come next if the budget is spent."""
        budget = self._rule.max_tokens
        if budget is not None and self._thought_tokens >= budget:
            closing = list(self._rule.closings[0])
            lengths = range(min(len(closing) - 1, self._thought_tokens), 0, -1)
            self._matched = next(
                (length for length in lengths if self._last[-length:] == closing[:length]), 0
            )
            self._state = _State.CLOSING

    def _answer_now(self) -> None:
        self._state = _State.ANSWER
        self._answer = self._make_answer() if self._make_answer is not None else None

    def _marker_at_end(self, markers: Sequence[Sequence[int]]) -> Sequence[int] | None:
        """Return the marker that the last tokens are, or None."""
        return next((marker for marker in markers if self._last[-len(marker) :] == list(marker)), None)


def thinking_of(
    rule: ThinkingRule | None, answer: Callable[[], Constraint] | None, end_ids: Collection[int] = ()
) -> Constraint | None:
    """Return the rule on an answer with thinking, or without; None if nothing rules it."""
    if rule is not None:
        return BoundedThinking(rule, answer, end_ids)
    return answer() if answer is not None else None


def _force(words: Array, token: int) -> None:
    words[:] = 0
    set_bits(words, np.array([token], np.int64))
