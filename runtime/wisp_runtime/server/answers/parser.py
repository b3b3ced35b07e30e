"""Parse an answer as its text comes: thinking is split off first, then tool calls are found in the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        max_calls: calls after which the answer ends; None: any number.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None = None,
        tools: ToolParser | None = None,
        max_calls: int | None = None,
    ) -> None:
        self._reasoning, self._tools, self._max_calls = reasoning, tools, max_calls
        self._calls = 0

    def push(self, delta: TextDelta) -> AnswerDelta:
        """Return the answer delta of a text delta.

        It may end the answer before its text ends; after a delta with ``finish``, nothing more may be pushed.
        """
        parts = self._split(delta.text)
        if delta.finish is not None:
            parts += self._rest()
        kept = list(self._allowed(parts))
        finish: Finish | None = delta.finish
        if len(kept) < len(parts) or (finish == "stop" and self._calls):
            finish = "tool_calls"
        return AnswerDelta(tuple(kept), finish, delta.stop, delta.token, delta.logprobs, delta.generated)

    def _split(self, text: str) -> list[Part]:
        if not text:
            return []
        return self._find_calls([Text(text)] if self._reasoning is None else self._reasoning.push(text))

    def _rest(self) -> list[Part]:
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

    def _allowed(self, parts: Sequence[Part]) -> Iterator[Part]:
        """Yield the parts before the first call that is one too many, and count the calls."""
        for part in parts:
            if isinstance(part, CallStart):
                if self._calls == self._max_calls:
                    return
                self._calls += 1
            yield part
