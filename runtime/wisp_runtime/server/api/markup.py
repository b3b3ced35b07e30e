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
from wisp_runtime.server.text.marker_tokens import marker_tokens
from wisp_runtime.server.text.tokenizer import ModelTokenizer

CALL_OPENINGS = {"hermes": ('<tool_call>\n{"name"',), "qwen3_coder": ("<tool_call>\n<function=",)}
"""Texts by markup that begin a call, also within thinking: a model that thinks about calls writes less."""


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
        has_grammar: whether the answer behind thinking follows a grammar.
        support: ways of the model to think.
    """

    prompt: str
    begun: str
    tools: ToolUse
    tool_format: ToolFormat | None
    thinking: ReasoningFormat | None
    has_thinking: bool
    has_grammar: bool
    support: ReasoningSupport

    @classmethod
    def of(
        cls, text: TextCodec, tools: ToolUse, prompt: str, begun: str = "", *, has_grammar: bool
    ) -> Markup:
        """Return the markups of a model's answer to ``prompt``."""
        tool_format, thinking = text.tool_format, text.reasoning.format
        if text.channels is not None:
            return cls(prompt, begun, tools, text.channels, None, True, has_grammar, text.reasoning)
        is_closed = thinking is not None and thinking.is_closed_by(prompt, begun)
        return cls(
            prompt,
            begun,
            tools,
            tool_format if tools.callable else None,
            None if is_closed else thinking,
            thinking is not None,
            has_grammar,
            text.reasoning,
        )

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of special tokens that the parsers need to see."""
        formats = (self.tool_format, self.thinking)
        return tuple(marker for format in formats if format is not None for marker in format.markers)

    @property
    def _call_openings(self) -> tuple[str, ...]:
        """Texts of a call that end thinking; a grammar begins behind the closing marker alone."""
        if self.tool_format is None or self.has_grammar:
            return ()
        return CALL_OPENINGS.get(self.tool_format.name, ())

    def parser(self, detection: RepetitionDetection | None) -> AnswerParser:
        """Return the parser of one choice.

        Args:
            detection: repetition that ends the answer; None: only loops in thinking do.
        """
        return AnswerParser(
            self.thinking.parser(self.prompt, self.begun, self._call_openings) if self.thinking else None,
            self.tool_format.parser(self.tools.callable) if self.tool_format else None,
            None if self.tools.is_parallel else 1,
            repetition=detection.rule() if detection else None,
            thinking_loop=None if detection else THINKING_LOOP,
            counts_thinking=self.has_thinking,
            must_call=self.tools.is_required and self.tool_format is not None,
            openers=self.tool_format.markers if self.tool_format else (),
        )

    def thinking_rule(self, budget_tokens: int | None, tokenizer: ModelTokenizer) -> ThinkingRule | None:
        """Return the bounds of the answer's thinking; None: it needs none.

        Args:
            budget_tokens: thinking tokens after which it is ended; None: no limit.
            tokenizer: the model's.
        """
        thinking = self.thinking
        if thinking is None and not self.has_grammar and self.tool_format is not None:
            thinking = self.support.format if self.tool_format.splits_thinking else None
        if thinking is None or (budget_tokens is None and not self.has_grammar):
            return None
        calls = [marker_tokens(tokenizer, text) for text in self._call_openings]
        return ThinkingRule(
            self.support.openings,
            (*self.support.closings, *(tokens for call in calls for tokens in call)),
            thinking.starts_open(self.prompt, self.begun),
            thinking.may_reopen,
            budget_tokens,
        )
