"""Markup that an answer to a conversation may have: of thinking and of tool calls."""

from __future__ import annotations

from dataclasses import dataclass

from wisp_runtime.server.answers.parser import AnswerParser
from wisp_runtime.server.answers.reasoning import ReasoningFormat
from wisp_runtime.server.answers.repetition import THINKING_LOOP
from wisp_runtime.server.answers.tools.format import ToolFormat
from wisp_runtime.server.parsing.generation_request import RepetitionDetection
from wisp_runtime.server.parsing.tools import ToolUse
from wisp_runtime.server.service import TextCodec


@dataclass(frozen=True, slots=True)
class Markup:
    """Markups that an answer is searched for.

    Attributes:
        prompt: text of the rendered conversation.
        tools: tools that the answer may call.
        tool_format: markup of calls; None: the answer is not searched for them.
        thinking: markup of thinking; None: it has none, or ``tool_format`` splits it.
    """

    prompt: str
    tools: ToolUse
    tool_format: ToolFormat | None
    thinking: ReasoningFormat | None

    @classmethod
    def of(cls, text: TextCodec, tools: ToolUse, prompt: str) -> Markup:
        """Return the markups of a model's answer to ``prompt``."""
        tool_format, thinking = text.tool_format, text.reasoning.format
        if tool_format is not None and tool_format.splits_thinking:
            return cls(prompt, tools, tool_format, None)
        return cls(prompt, tools, tool_format if tools.callable else None, thinking)

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of special tokens that the parsers need to see."""
        is_open = self.thinking is not None and not self.thinking.is_closed_by(self.prompt)
        thinking = self.thinking.markers if self.thinking is not None and is_open else ()
        return (*(self.tool_format.markers if self.tool_format else ()), *thinking)

    def parser(self, detection: RepetitionDetection | None) -> AnswerParser:
        """Return the parser of one choice.

        Args:
            detection: repetition that ends the answer; None: only loops in thinking do.
        """
        splits_thinking = self.tool_format is not None and self.tool_format.splits_thinking
        return AnswerParser(
            self.thinking.parser(self.prompt) if self.thinking else None,
            self.tool_format.parser(self.tools.callable) if self.tool_format else None,
            None if self.tools.is_parallel else 1,
            repetition=detection.rule() if detection else None,
            thinking_loop=None if detection else THINKING_LOOP,
            counts_thinking=splits_thinking or self.thinking is not None,
        )
