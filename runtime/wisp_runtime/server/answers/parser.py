"""Parse an answer as its text comes: thinking is split off first, then tool calls are found in the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wisp_runtime.server.answers.parts import AnswerDelta, CallStart, Finish, Part, Text
from wisp_runtime.server.answers.tools.format import ToolParser
from wisp_runtime.server.text.deltas import TextDelta


class ReasoningParser(Protocol):
    """Splits thinking from the rest. The parts do not depend on how the text was divided."""

    def push(self, text: str) -> Sequence[Part]:
        """Add text; return the parts that are certain by now, Thinking and Text."""
        ...

    def finish(self) -> Sequence[Part]:
        """Return the rest, once."""
        ...


class AnswerParser:
    """Parser of one choice: text deltas in, answer deltas out.

    Args:
        reasoning: parser of thinking; None if the model has none.
        tools: parser of tool calls; None if the request brings no tools.
    """

    def __init__(self, reasoning: ReasoningParser | None = None, tools: ToolParser | None = None) -> None:
        self._reasoning, self._tools = reasoning, tools
        self._has_called = False

    def push(self, delta: TextDelta) -> AnswerDelta:
        """Return the answer delta of a text delta; after one with ``finish``, nothing more may be pushed."""
        parts = list(self._split(delta.text))
        if delta.finish is not None:
            parts += self._rest()
        self._has_called |= any(isinstance(part, CallStart) for part in parts)
        finish: Finish | None = delta.finish
        if finish == "stop" and self._has_called:
            finish = "tool_calls"
        return AnswerDelta(tuple(parts), finish, delta.stop, delta.token, delta.logprobs)

    def _split(self, text: str) -> Sequence[Part]:
        if not text:
            return ()
        if self._reasoning is None:
            return self._find_calls([Text(text)])
        return self._find_calls(self._reasoning.push(text))

    def _rest(self) -> Sequence[Part]:
        """Return what both parsers hold back."""
        held = self._find_calls(self._reasoning.finish()) if self._reasoning is not None else []
        return [*held, *(self._tools.finish() if self._tools is not None else ())]

    def _find_calls(self, parts: Sequence[Part]) -> list[Part]:
        """Replace each Text by the parts that the tool parser finds in it."""
        if self._tools is None:
            return list(parts)
        found: list[Part] = []
        for part in parts:
            found += self._tools.push(part.text) if isinstance(part, Text) else (part,)
        return found
