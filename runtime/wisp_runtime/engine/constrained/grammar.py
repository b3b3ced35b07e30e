"""A grammar's parser, advanced by the tokens of one answer; by llguidance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

from wisp_runtime.batch import Array

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

    from wisp_runtime.engine.constrained.vocabulary import Vocabulary

MAX_MASK_THREADS = 8
MIN_PARALLEL = 4  # masks that are worth threads: one takes 50 us
SLOW_MASK_S = 0.005
SLOW_STEP_S = 0.05  # of the masks of a step: the next are timed one by one
MAX_OVERTIME_S = 0.5  # processor time of an answer's masks beyond SLOW_MASK_S each
MAX_REASON_CHARS = 500
DEAD_END = (
    "no token of this model continues the answer as its grammar, and the request's other rules, require; "
    "let the grammar allow other texts"
)
_REMEDY = "Simplify the schema or grammar: fewer alternatives, shorter patterns and bounds"


class Grammar:
    """Parser of one answer.

    Args:
        matcher: parser at the grammar's start; this object owns it.
        vocabulary: tokens that it counts.
        lexer: object that stands for the lexer it shares with copies of its parser; None: it shares none.

    Attributes:
        error: see :class:`.constraint.Constraint`.
        is_slow: whether its masks are timed one by one, because those of a step took long.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, lexer: object = None) -> None:
        self.matcher, self.vocabulary = matcher, vocabulary
        self.lexer_id = id(self if lexer is None else lexer)
        self.error = ""
        self.is_slow = False
        self._pending: list[int] = []
        self._overtime_s = 0.0

    def advance(self, token: int) -> None:
        """Take in a token; it is parsed when the next mask is computed."""
        self._pending.append(token)

    def grammar(self) -> Grammar:
        """Return this grammar."""
        return self

    @property
    def is_over(self) -> bool:
        """Return False: an answer that is complete may only end."""
        return False

    @property
    def is_free(self) -> bool:
        """Return False: each token depends on those before."""
        return False

    def allow_more(self, words: Array) -> None:
        """Allow no more."""

    def fill(self, words: Array) -> None:
        """Allow all: :func:`fill_rows` computes masks of grammars."""

    def take_pending(self) -> list[int]:
        """Return the tokens that are not parsed yet, and forget them."""
        pending, self._pending = self._pending, []
        return pending

    def charge(self, seconds: float, tokens: int) -> None:
        """Count the processor time of a mask; a grammar that takes far too much ends its request."""
        self.is_slow = seconds > SLOW_MASK_S
        self._overtime_s = max(0.0, self._overtime_s + seconds - SLOW_MASK_S * max(1, tokens))
        if self._overtime_s > MAX_OVERTIME_S and not self.error:
            self.error = f"the grammar of the answer takes too long at each token: it is ambiguous. {_REMEDY}"

    def check(self) -> None:
        """Note the parser's error, if it has one."""
        if self.error or not self.matcher.is_error():
            return
        why = reason(self.matcher.get_error())
        is_dead_end = why == "NoExtensionBias"
        self.error = DEAD_END if is_dead_end else f"the grammar of the answer cannot go on: {why}. {_REMEDY}"


def reason(error: str) -> str:
    """Return an error of llguidance in one line, without the parser's state.

    A panic of its names a place in its code, and quotes the grammar at length: neither helps the sender.
    """
    if error.startswith("panic: "):
        return "the compiler of grammars has a mistake, which breaks off at this one"
    first, *others = error.partition("\n<")[0].strip().splitlines() or [""]
    causes = [line.removeprefix("error: ") for line in others if line.startswith("error: ")]
    return ": ".join([first.rstrip(":"), *causes])[:MAX_REASON_CHARS].rstrip(".")


def executor_threads() -> int:
    """Return the number of threads that compute masks."""
    import os

    return max(1, min(len(os.sched_getaffinity(0)), MAX_MASK_THREADS))


@cache
def executor() -> LLExecutor:
    """Return the threads that compute masks."""
    from llguidance import LLExecutor

    return LLExecutor(executor_threads())


def fill_rows(grammars: Sequence[tuple[Grammar, int]], rows: Array) -> None:
    """Parse the tokens that came, and write the tokens that may come next.

    Args:
        grammars: grammars of one vocabulary, each with the index of its row.
        rows: ``[R, ceil(vocab / 32)]`` uint32, contiguous. An erroneous grammar's row means nothing.
    """
    together = [entry for entry in grammars if not entry[0].is_slow]
    lexers = {grammar.lexer_id for grammar, _ in together}
    if len(together) < MIN_PARALLEL or len(lexers) == 1:
        together = []
    for grammar, index in grammars if not together else [entry for entry in grammars if entry[0].is_slow]:
        _fill_timed(grammar, rows[index])
    if together:
        began_s = perf_counter()
        _fill_together(together, rows)
        is_slow = perf_counter() - began_s > SLOW_STEP_S
        for grammar, _ in together:
            grammar.is_slow = is_slow
    for grammar, _ in grammars:
        grammar.check()


def _fill_timed(grammar: Grammar, row: Array) -> None:
    """Compute one mask in this thread, and charge the grammar for its time."""
    tokens, began_s = grammar.take_pending(), thread_time()
    grammar.matcher.consume_tokens(tokens)
    grammar.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    grammar.charge(thread_time() - began_s, len(tokens))


def _fill_together(grammars: Sequence[tuple[Grammar, int]], rows: Array) -> None:
    """Compute masks in the threads of :func:`executor`: of one lexer one after another, it has a lock."""
    for grammar, _ in grammars:
        grammar.matcher.consume_tokens(grammar.take_pending())  # 3 us each, less than to wake threads
    neighbours = sorted(grammars, key=lambda entry: entry[0].lexer_id)
    parsers = [(grammar.matcher, index) for grammar, index in neighbours]
    executor().unsafe_compute_mask_ptr(parsers, rows.ctypes.data, rows[0].nbytes, len(rows))
