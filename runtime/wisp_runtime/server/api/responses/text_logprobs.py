"""Log-probabilities of a message's tokens: those of whose text some is in the message's. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from wisp_runtime.server.answers.parts import AnswerDelta, Part, Text, Thinking
from wisp_runtime.server.api.logprobs import TokenNames, chat_entry


class TextLogprobs:
    """Tokens of an answer whose text may yet be shown.

    Tokens of markers, thinking and calls are dropped; those of text that is held back wait for it.

    Args:
        names: names of tokens; None reports none.
    """

    def __init__(self, names: TokenNames | None) -> None:
        self._names = names
        self._waiting: list[tuple[int, str]] = []  # places in the answer's text, and entries
        self._read, self._end = "", 0  # text in no part yet, and the place where it begins

    def push(self, delta: AnswerDelta) -> Iterator[tuple[Part, Sequence[str]]]:
        """Yield the delta's parts; text with the entries (JSON texts) of tokens it is the first to show."""
        if self._names is None:
            yield from ((part, ()) for part in delta.parts)
            return
        if (entry := chat_entry(self._names, delta)) is not None:
            self._waiting.append((delta.begin, entry))
        self._read += delta.read
        certain = len(self._read) - delta.held_chars
        for part, begin in zip(delta.parts, self._places(delta.parts, certain), strict=True):
            yield part, self._take(begin, begin + len(part.text)) if isinstance(part, Text) else ()
        self._forget(certain)

    def _places(self, parts: Sequence[Part], end: int) -> Sequence[int]:
        """Return the places where parts begin: the last ones at which their texts precede the ``end``."""
        places = list[int]()
        for part in reversed(parts):
            if isinstance(part, Text | Thinking):
                end = max(self._read.rfind(part.text, 0, end), 0)
            places.append(self._end + end)
        return places[::-1]

    def _forget(self, chars: int) -> None:
        """Forget text that is in parts or in markers, and its tokens."""
        if chars:
            self._read, self._end = self._read[chars:], self._end + chars
            self._waiting = [(begin, entry) for begin, end, entry in self._spans() if end > self._end]

    def _take(self, begin: int, end: int) -> Sequence[str]:
        """Return the entries of tokens with text between two places, which wait no longer."""
        spans = list(self._spans())
        self._waiting = [(first, entry) for first, _, entry in spans if first >= end]
        return [entry for first, last, entry in spans if first < end and last > begin]

    def _spans(self) -> Iterator[tuple[int, float, str]]:
        """Yield begin, end and entry of the tokens that wait; parts of one character have it together."""
        begins = [begin for begin, _ in self._waiting]
        ends = dict(pairwise([*dict.fromkeys(begins), float("inf")]))
        for begin, entry in self._waiting:
            yield begin, ends[begin], entry
