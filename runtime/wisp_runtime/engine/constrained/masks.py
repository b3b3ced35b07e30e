"""Masks of tokens that may come next, computed ahead: while the forward pass runs.

A mask depends on the tokens before it, so it is computed once those are committed: :func:`start` hands all
rows of a step to a thread, and :func:`rows_of` collects them when the step is sampled. On a GPU a step's
tokens are committed while the next one's forward pass runs already; then :func:`rows_of` computes the masks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.engine.constrained.bits import ALL, clear_from, has_any, set_bits, words_of
from wisp_runtime.engine.constrained.constraint import Constraint
from wisp_runtime.engine.constrained.grammar import DEAD_END, MIN_PARALLEL, fill_rows
from wisp_runtime.engine.constrained.rules import TokenRules


class TokenMask:
    """Tokens that one sequence may sample next.

    Args:
        constraint: grammar of the answer, or the like; None if it has none.
        end_ids: tokens that end the sequence: allowed wherever a grammar may end.
        vocab: V, number of the model's token ids.
        rules: further rules of the request; None if it has none.
    """

    def __init__(
        self,
        constraint: Constraint | None,
        end_ids: Collection[int],
        vocab: int,
        rules: TokenRules | None = None,
    ) -> None:
        self.constraint, self.rules = constraint, rules
        self.end_ids = np.array(sorted(token for token in end_ids if token < vocab), np.int64)
        self.vocab = vocab
        self.job: Future[None] | None = None
        self.words: Array | None = None  # of the next token, [ceil(V / 32)]; None until computed
        self._dead_end = ""

    @property
    def error(self) -> str:
        """Reason why the sequence cannot go on; empty while it can."""
        return (self.constraint.error if self.constraint is not None else "") or self._dead_end

    @property
    def is_free(self) -> bool:
        """Whether it allows every token next, and behind that."""
        return self.rules is None and self.constraint is not None and self.constraint.is_free

    @property
    def is_over(self) -> bool:
        """Whether it allows every token from now on."""
        has_constraint = self.constraint is not None and not self.constraint.is_over
        return not has_constraint and (self.rules is None or self.rules.are_over)

    @property
    def is_missing(self) -> bool:
        """Whether the mask of the next token is needed, and neither computed nor being computed."""
        return self.words is None and self.job is None and not self.is_free

    def advance(self, token: int) -> None:
        """Take in a generated token."""
        if self.constraint is not None:
            self.constraint.advance(token)
        if self.rules is not None:
            self.rules.advance(token)
        self.words = self.job = None

    def set_words(self, words: Array) -> None:
        """Take the computed mask."""
        if not words.any():
            self._dead_end = DEAD_END
        self.words = words


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="masks")


def start(masks: Sequence[TokenMask]) -> None:
    """Begin to compute missing masks, all in one thread's job; a few are left to :func:`rows_of`."""
    missing = [mask for mask in masks if mask.is_missing]
    if len(missing) >= MIN_PARALLEL:
        job = _thread().submit(compute, missing)
        for mask in missing:
            mask.job = job


def complete(masks: Sequence[TokenMask]) -> None:
    """Wait for masks that are being computed, and compute those that nobody began."""
    needed = [mask for mask in masks if not mask.is_free]
    for mask in needed:
        if mask.job is not None:
            mask.job.result()
            mask.job = None
    if missing := [mask for mask in needed if mask.words is None]:
        compute(missing)


def rows_of(masks: Sequence[TokenMask | None]) -> Array | None:
    """Return the masks of a step's rows, ``[R, ceil(V / 32)]`` uint32; None where no row has one.

    Completes them first.
    """
    present = [mask for mask in masks if mask is not None and not mask.is_free]
    if not present:
        return None
    complete(present)
    everything = np.full(words_of(present[0].vocab), ALL, np.uint32)
    return np.stack([everything if mask is None or mask.words is None else mask.words for mask in masks])


def compute(masks: Sequence[TokenMask]) -> None:
    """Compute the masks of the next tokens."""
    grammars = [None if mask.constraint is None else mask.constraint.grammar() for mask in masks]
    sizes = [grammar.vocabulary.size for grammar in grammars if grammar is not None]
    vocab = sizes[0] if sizes else masks[0].vocab  # that of all grammars, often the model's
    rows = np.full((len(masks), words_of(vocab)), ALL, np.uint32)
    parsed = [(grammar, row) for row, grammar in enumerate(grammars) if grammar is not None]
    if parsed:
        fill_rows(parsed, rows)
    for mask, grammar, row in zip(masks, grammars, rows, strict=True):
        words = _resized(row, words_of(mask.vocab), ALL if grammar is None else 0)
        if grammar is not None and mask.constraint is not None:
            if has_any(words, grammar.vocabulary.end_ids):
                set_bits(words, mask.end_ids)
            mask.constraint.allow_more(words)
        elif mask.constraint is not None:
            mask.constraint.fill(words)
        clear_from(words, mask.vocab)
        if mask.rules is not None:
            mask.rules.restrict(words)
        mask.set_words(words)


def _resized(row: Array, words: int, others: int | np.uint32) -> Array:
    """Return the first ``words`` of a row, whose tokenizer may have fewer tokens than the model, or more."""
    if len(row) < words:
        return np.concatenate([row, np.full(words - len(row), others, np.uint32)])
    return row[:words]
