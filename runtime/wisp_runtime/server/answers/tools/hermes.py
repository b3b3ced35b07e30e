"""Hermes' markup: ``<tool_call>`` around a JSON object. Qwen 2.5, Qwen 3, SmolLM 3 and many others write it.

SmolLM 2 puts a list of objects between the tags. An object ends the call, even if the closing tag is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from wisp_runtime.server.answers.tools.format import Tool, ToolParser
from wisp_runtime.server.answers.tools.grammars.call_objects import call_object
from wisp_runtime.server.answers.tools.grammars.lark import LarkRules, repeated
from wisp_runtime.server.answers.tools.scanners.json_calls import JsonCallsParser

OPENER, CLOSER = "<tool_call>", "</tool_call>"


class Hermes:
    """Format ``hermes``."""

    name = "hermes"
    markers: tuple[str, ...] = (OPENER, CLOSER)
    splits_thinking = False
    ends: tuple[str, ...] = ()

    def parser(self, _tools: Sequence[Tool]) -> ToolParser:
        """Return a parser for one answer."""
        return JsonCallsParser((OPENER,), (CLOSER,))

    def calls(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:
        """Return the symbols of calls alone."""
        call = f"{rules.literal(OPENER)} {self._rest(rules, tools)}"
        return repeated(call, f'"\\n" {call}', is_parallel=is_parallel)

    def answer(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:
        """Return the symbols of an answer that may have calls."""
        call = f"{rules.text_until(OPENER)} {self._rest(rules, tools)}"
        return f"({call})* {rules.text(OPENER)}" if is_parallel else f"{call} | {rules.text(OPENER)}"

    def _rest(self, rules: LarkRules, tools: Sequence[Tool]) -> str:
        """Return the symbols of a call behind the opening tag."""
        closer = rules.literal("\n" + CLOSER)
        return f'"\\n" {call_object(rules, tools, "arguments")} {closer}'
