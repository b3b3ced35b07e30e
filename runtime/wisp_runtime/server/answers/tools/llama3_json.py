"""Llama 3's markup: ``{"name": …, "parameters": {…}}``, alone or behind ``<|python_tag|>``.

Calls are separated by ``;``. Without the marker an object is a call if it begins a line, has the name of a
tool, and no unknown keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from wisp_runtime.server.answers.tools.format import Tool, ToolParser
from wisp_runtime.server.answers.tools.grammars.call_objects import call_object
from wisp_runtime.server.answers.tools.grammars.lark import LarkRules, repeated
from wisp_runtime.server.answers.tools.scanners.json_call import KNOWN_KEYS
from wisp_runtime.server.answers.tools.scanners.json_calls import JsonCallsParser

OPENER = "<|python_tag|>"
_LINE_START = rf'\{{[ \t\r\n]*"(?:{"|".join(sorted(KNOWN_KEYS))})"'


class Llama3Json:
    """Format ``llama3_json``."""

    name = "llama3_json"
    markers: tuple[str, ...] = (OPENER,)
    splits_thinking = False
    ends: tuple[str, ...] = ()

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """Return a parser for one answer."""
        return JsonCallsParser((OPENER,), names=frozenset(tool.name for tool in tools))

    def calls(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:
        """Return the symbols of calls alone."""
        call = call_object(rules, tools, "parameters")
        return repeated(call, f'"; " {call}', is_parallel=is_parallel)

    def answer(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:
        """Return the symbols of an answer that may have calls."""
        calls = self.calls(rules, tools, is_parallel=is_parallel)
        return f"{calls} | {rules.text_without(_LINE_START, OPENER)}"
