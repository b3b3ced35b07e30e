"""A rule that holds once a marker was generated: an answer that follows a model's thinking."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.engine.constrained.bits import clear_bits
from wisp_runtime.engine.constrained.constraint import Constraint
from wisp_runtime.engine.constrained.grammar import Grammar


class After:
    """All tokens up to a marker, ``inner`` behind it; see :class:`.constraint.Constraint`.

    Args:
        marker: tokens after which the rule holds, as the model generates them in a row.
        inner: rule on the tokens behind the marker.
        end_ids: tokens that end an answer; none may come before the marker.
    """

    def __init__(self, marker: Sequence[int], inner: Constraint, end_ids: Collection[int] = ()) -> None:
        self._marker, self._inner = list(marker), inner
        self._end_ids = np.array(sorted(end_ids), np.int64)
        self._last: list[int] = []
        self._holds = not self._marker

    @property
    def error(self) -> str:
        """Error of the rule."""
        return self._inner.error

    def advance(self, token: int) -> None:
        """Take in a token."""
        if self._holds:
            self._inner.advance(token)
            return
        self._last = [*self._last, token][-len(self._marker) :]
        self._holds = self._last == self._marker

    def grammar(self) -> Grammar | None:
        """Return the rule's grammar, behind the marker."""
        return self._inner.grammar() if self._holds else None

    def fill(self, words: Array) -> None:
        """Allow all but the end before the marker."""
        if self._holds:
            self._inner.fill(words)
        else:
            clear_bits(words, self._end_ids)
