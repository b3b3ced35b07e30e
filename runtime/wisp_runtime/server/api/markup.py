"""Markup that an answer to a conversation may have: of thinking and of tool calls."""

from __future__ import annotations

from dataclasses import dataclass

from wisp_runtime.engine.transport.messages import ThinkingRule
from wisp_runtime.server.answers.parser import AnswerParser
from wisp_runtime.server.answers.reasoning import ReasoningFormat
from wisp_runtime.server.answers.repetition import THINKING_LOOP
from wisp_runtime.server.answers.tools.format import ToolFormat
from wisp_runtime.server.parsing.generation_request import RepetitionDetection
from wisp_runtime.server.parsing.reasoning import ReasoningSupport
from wisp_runtime.server.parsing.tools import ToolUse
from wisp_runtime.server.service import TextCodec


@dataclass(frozen=True, slots=True)
class Markup:
    """Markups that an answer is searched for.

    Attributes:
        prompt: text of the rendered conversation.
        begun: text of the answer that it ends with, if a message is continued.
        tools: tools that the answer may call.
        tool_format: markup of calls; None: the answer is not searched for them.
        thinking: markup of thinking; None: the model has none, the prompt has closed it, or ``tool_format``
            splits it.
        has_thinking: whether the model's thinking is known.
        support: ways of the model to think.
    """

    prompt: str
    begun: str
    tools: ToolUse
    tool_format: ToolFormat | None
    thinking: ReasoningFormat | None
    has_thinking: bool
    support: ReasoningSupport

    @classmethod
    def of(cls, text: TextCodec, tools: ToolUse, prompt: str, begun: str = "") -> Markup:
        """Return the markups of a model's answer to ``prompt``."""
        tool_format, thinking = text.tool_format, text.reasoning.format
        if tool_format is not None and tool_format.splits_thinking:
            return cls(prompt, begun, tools, tool_format, None, True, text.reasoning)
        is_closed = thinking is not None and thinking.is_closed_by(prompt, begun)
        return cls(
            prompt,
            begun,
            tools,
            tool_format if tools.callable else None,
            None if is_closed else thinking,
            thinking is not None,
            text.reasoning,
        )

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of special tokens that the parsers need to see."""
        formats = (self.tool_format, self.thinking)
        return tuple(marker for format in formats if format is not None for marker in format.markers)

    def parser(self, detection: RepetitionDetection | None) -> AnswerParser:
        """Return the parser of one choice.

        Args:
            detection: repetition that ends the answer; None: only loops in thinking do.
        """
        return AnswerParser(
            self.thinking.parser(self.prompt, self.begun) if self.thinking else None,
            self.tool_format.parser(self.tools.callable) if self.tool_format else None,
            None if self.tools.is_parallel else 1,
            repetition=detection.rule() if detection else None,
            thinking_loop=None if detection else THINKING_LOOP,
            counts_thinking=self.has_thinking,
        )

    def thinking_rule(self, budget_tokens: int | None, *, has_grammar: bool) -> ThinkingRule | None:
        """Return the bounds of the answer's thinking; None: it needs none.

        Args:
            budget_tokens: thinking tokens after which it is ended; None: no limit.
            has_grammar: whether the answer behind it follows a grammar.
        """
        if self.thinking is None or (budget_tokens is None and not has_grammar):
            return None
        return ThinkingRule(
            self.support.openings,
            self.support.closings,
            self.thinking.starts_open(self.prompt, self.begun),
            self.thinking.may_reopen,
            budget_tokens,
        )
