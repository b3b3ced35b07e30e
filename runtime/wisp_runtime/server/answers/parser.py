"""Parse an answer as its text comes: thinking is split off first, then tool calls are found in the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from wisp_runtime.server.answers.parts import (
    AnswerDelta,
    CallArguments,
    CallStart,
    Finish,
    Part,
    Text,
    Thinking,
)
from wisp_runtime.server.answers.repetition import (
    STOP_REASON,
    THINKING_LOOP,
    RepetitionFinder,
    RepetitionRule,
)
from wisp_runtime.server.answers.tools.format import ToolParser
from wisp_runtime.server.text.deltas import TextDelta


class ReasoningParser(Protocol):
    """Splits thinking from the rest. The parts do not depend on how the text was divided.

    Attributes:
        is_thinking: whether the text that comes next is thinking, unless a marker is under way.
        held_chars: characters at the end of the text that may yet be a marker, or white space beside one.
    """

    @property
    def is_thinking(self) -> bool: ...

    @property
    def held_chars(self) -> int: ...

    def push(self, text: str, open_thinking: Callable[[], bool]) -> Iterable[Part]:
        """Add text; yield the parts that are certain by now, Thinking and Text.

        ``open_thinking`` is called where thinking would begin, and returns whether it may.
        """
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
        repetition: repetition that ends the answer; None: none does.
        thinking_loop: repetition that ends it while it thinks; None: none does.
        counts_thinking: whether the model's thinking is known, by either parser.
        must_call: whether the answer is calls alone, by a grammar: what the end leaves undecided is no text.
        openers: markers with which text that a token limit leaves undecided is no text either.

    Attributes:
        thinking_tokens: tokens up to the closing marker of thinking, which is included; of thinking that the
            tools' parser splits, tokens that add to it. None if the model's thinking is not known.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None = None,
        tools: ToolParser | None = None,
        max_calls: int | None = None,
        *,
        repetition: RepetitionRule | None = None,
        thinking_loop: RepetitionRule | None = THINKING_LOOP,
        counts_thinking: bool = False,
        must_call: bool = False,
        openers: tuple[str, ...] = (),
    ) -> None:
        self._must_call, self._openers = must_call, openers
        self._reasoning, self._tools, self._max_calls = reasoning, tools, max_calls
        self._calls = 0
        self._arguments: list[str] = []  # of the last call
        self._interrupted: list[Part] = []  # of calls' markup in front of thinking
        self._repetition = RepetitionFinder(repetition) if repetition else None
        self._thinking_loop = RepetitionFinder(thinking_loop) if counts_thinking and thinking_loop else None
        self.thinking_tokens = 0 if counts_thinking else None
        self._has_logprobs = False
        self._undecided_tokens: int | None = 0  # that may be an opening marker; None once there is a part

    def push(self, delta: TextDelta) -> AnswerDelta:
        """Return the answer delta of a text delta.

        It may end the answer before its text ends; after a delta with ``finish``, nothing more may be pushed.
        """
        was_thinking = self._is_thinking
        parts = self._split(delta.text)
        has_thought = was_thinking or self._is_thinking or any(isinstance(part, Thinking) for part in parts)
        finish: Finish | None = delta.finish
        stop = delta.stop
        if delta.token is not None:
            self._count(has_thought, bool(parts))
            if self._repeats(delta.token, has_thought, bool(parts)) and finish is None:
                finish, stop = "length", STOP_REASON
        if finish is not None:
            parts += self._without_cut_call(self._rest(), finish)
        kept = list(self._allowed(parts))
        if len(kept) < len(parts):
            finish, stop = "tool_calls", None  # a stop string would be behind the last call
        elif finish == "stop" and self._calls and not self._is_cut(stop):
            finish = "tool_calls"
        self._has_logprobs |= delta.logprobs is not None
        return AnswerDelta(
            tuple(kept),
            finish,
            stop,
            delta.token,
            delta.logprobs,
            delta.generated,
            has_thought,
            delta.begin,
            delta.text,
            self._held_chars() if self._has_logprobs else 0,
        )

    @property
    def _is_thinking(self) -> bool:
        return self._reasoning is not None and self._reasoning.is_thinking

    def _held_chars(self) -> int:
        return sum(parser.held_chars for parser in (self._reasoning, self._tools) if parser is not None)

    def _count(self, has_thought: bool, has_parts: bool) -> None:
        """Count a token as thinking, as text, or as undecided."""
        if self.thinking_tokens is None:
            return
        if has_thought:
            self.thinking_tokens += 1 + (self._undecided_tokens or 0)
        elif self._undecided_tokens is not None and not has_parts:
            self._undecided_tokens += 1
            return
        self._undecided_tokens = None

    def _repeats(self, token: int, has_thought: bool, has_parts: bool) -> bool:
        """Take in a token; return whether the answer now ends in a repetition that ends it."""
        if self._thinking_loop is not None:
            if has_thought and self._thinking_loop.push(token):
                return True
            if has_parts and not has_thought:
                self._thinking_loop.restart()
        return self._repetition is not None and self._repetition.push(token)

    def _split(self, text: str) -> list[Part]:
        if not text:
            return []
        if self._reasoning is None:
            return self._find_calls([Text(text)])
        return self._find_calls(self._reasoning.push(text, self._open_thinking))

    def _open_thinking(self) -> bool:
        """Return whether thinking begins: a marker within a call is a part of it. Text before comes first."""
        if self._tools is None:
            return True
        if self._tools.is_in_call:
            return False
        self._interrupted += self._tools.interrupt()
        return True

    def _rest(self) -> list[Part]:
        """Return what both parsers hold back."""
        held = self._find_calls(self._reasoning.finish()) if self._reasoning is not None else []
        return [*held, *(self._tools.finish() if self._tools is not None else ())]

    def _without_cut_call(self, rest: list[Part], finish: Finish) -> list[Part]:
        """Return the rest of an answer without the beginning of a call that has no name yet."""
        return [part for part in rest if not (isinstance(part, Text) and self._is_cut_call(part, finish))]

    def _is_cut_call(self, part: Text, finish: Finish) -> bool:
        return self._must_call or (finish == "length" and part.text.lstrip().startswith(self._openers))

    def _find_calls(self, parts: Iterable[Part]) -> list[Part]:
        """Replace each Text by the parts that the tool parser finds in it, one after the other."""
        if self._tools is None:
            return list(parts)
        found: list[Part] = []
        for part in parts:
            found += self._take_interrupted()
            found += self._tools.push(part.text) if isinstance(part, Text) else (part,)
        return found + self._take_interrupted()

    def _take_interrupted(self) -> list[Part]:
        parts, self._interrupted = self._interrupted, []
        return parts

    def _is_cut(self, stop: str | int | None) -> bool:
        """Return whether the stop that ended the answer stands inside its last call's arguments."""
        if stop is None:
            return False
        try:
            json.loads("".join(self._arguments))
        except ValueError:
            return True
        return False

    def _allowed(self, parts: Sequence[Part]) -> Iterator[Part]:
        """Yield the parts before the first call that is one too many, and count the calls."""
        for part in parts:
            if isinstance(part, CallStart):
                if self._calls == self._max_calls:
                    return
                self._calls += 1
                self._arguments.clear()
            elif isinstance(part, CallArguments):
                self._arguments.append(part.text)
            yield part
