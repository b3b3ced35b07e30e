"""Split an answer into thinking and text, however it was divided into deltas.

Newlines at both ends of thinking are dropped, and those in front of the text behind it: chat templates strip
the same when they write a former message, so a conversation that is sent back has the same prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

from wisp_runtime.server.answers.parts import Part, Text, Thinking

MAX_HELD_CHARS = 1024
"""Whitespace that is held back at most: in front of an opening marker, and newlines in front of a closing
one. Longer runs are shown, so that no answer costs more than its length."""


class _State(Enum):
    BEFORE = auto()  # nothing but whitespace came
    THINKING = auto()
    TEXT = auto()
    OPENER = auto()  # behind text, an opening marker comes next


class ThinkingParser:
    """Parser of one answer; see :class:`.parser.ReasoningParser`.

    Args:
        opening: marker in front of thinking.
        closing: marker behind it.
        starts_open: whether the prompt ends within thinking, so that the answer begins there. An opening
            marker that the model repeats is dropped.
        may_reopen: whether thinking may also begin behind text, though not within a tool call. Otherwise it
            begins the answer, and an opening marker behind text is text: the model may write about markers.
        call_openings: texts with which a tool call begins. Thinking ends in front of one: some models call
            tools without closing it (Qwen 3.5).
    """

    def __init__(
        self,
        opening: str,
        closing: str,
        *,
        starts_open: bool,
        may_reopen: bool,
        call_openings: Sequence[str] = (),
    ) -> None:
        self._opening, self._closing = opening, closing
        self._ends = (closing, *call_openings)
        self._may_reopen = may_reopen
        self._state = _State.BEFORE
        self._unmarked = _State.THINKING if starts_open else _State.TEXT
        self._drops_newlines = starts_open
        self._held = ""

    @property
    def is_thinking(self) -> bool:
        """Whether the text that comes next is thinking, unless a marker is under way."""
        return _State.THINKING is (self._unmarked if self._state is _State.BEFORE else self._state)

    @property
    def held_chars(self) -> int:
        """Characters at the end of the text that may yet be a marker, or white space beside one."""
        return len(self._held)

    def push(self, text: str, open_thinking: Callable[[], bool] = lambda: True) -> Iterator[Part]:
        """Add text; yield the parts that are certain by now.

        Args:
            open_thinking: called in front of thinking that would begin behind text, after the parts before it
                were taken; returns whether it may.
        """
        self._held += text
        goes_on = True
        while self._held and goes_on:
            parts: list[Part] = []
            goes_on = self._advance(parts, open_thinking)
            yield from parts

    def finish(self) -> Sequence[Part]:
        """Return the text held back; thinking that was never closed stays thinking."""
        held, self._held = self._held, ""
        if self.is_thinking:
            held = _without_last_newlines(held)
            return [Thinking(held)] if held else []
        return [Text(held)] if held else []

    def _advance(self, parts: list[Part], open_thinking: Callable[[], bool]) -> bool:
        """Move certain text to ``parts``; return whether a marker, or its absence, began another state."""
        if self._drops_newlines:
            self._held = self._held.lstrip("\n")
            self._drops_newlines = not self._held
        match self._state:
            case _State.BEFORE:
                return self._begin()
            case _State.THINKING:
                return self._think(parts)
            case _State.OPENER:
                return self._reopen(parts, opens=open_thinking())
            case _:
                return self._write(parts)

    def _begin(self) -> bool:
        rest = self._held.lstrip()
        is_whitespace_short = len(self._held) - len(rest) <= MAX_HELD_CHARS
        if is_whitespace_short and rest.startswith(self._opening):
            return self._enter(_State.THINKING, rest[len(self._opening) :])
        if is_whitespace_short and self._opening.startswith(rest):
            return False
        self._state = self._unmarked
        return True

    def _think(self, parts: list[Part]) -> bool:
        places = [(self._held.find(marker), marker) for marker in self._ends]
        end, marker = min((place for place in places if place[0] >= 0), default=(-1, ""))
        undecided = max(_undecided(self._held, marker) for marker in self._ends)
        decided = end if marker else len(self._held) - undecided
        shown = _without_last_newlines(self._held[:decided])
        if shown:
            parts.append(Thinking(shown))
        if marker:
            behind = end + len(marker) if marker == self._closing else end
            return self._enter(_State.TEXT, self._held[behind:])
        self._held = self._held[len(shown) :]
        return False

    def _write(self, parts: list[Part]) -> bool:
        end, decided = -1, len(self._held)
        if self._may_reopen:
            end = self._held.find(self._opening)
            decided = end if end >= 0 else decided - _undecided(self._held, self._opening)
        if decided:
            parts.append(Text(self._held[:decided]))
        self._held = self._held[decided:]
        if end >= 0:
            self._state = _State.OPENER
        return end >= 0

    def _reopen(self, parts: list[Part], *, opens: bool) -> bool:
        rest = self._held[len(self._opening) :]
        if opens:
            return self._enter(_State.THINKING, rest)
        parts.append(Text(self._opening))
        self._state, self._held = _State.TEXT, rest
        return True

    def _enter(self, state: _State, rest: str) -> bool:
        self._state, self._held, self._drops_newlines = state, rest, True
        return True


def _without_last_newlines(text: str) -> str:
    newlines = len(text) - len(text.rstrip("\n"))
    return text[: len(text) - min(newlines, MAX_HELD_CHARS)]


def _undecided(text: str, marker: str) -> int:
    """Return the length of the longest end of ``text`` with which ``marker`` begins, itself excluded."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)
