"""Llama 3's markup: ``{"name": …, "parameters": {…}}``, alone or behind ``<|python_tag|>``.

Calls are separated by ``;``. Without the marker an object is a call if it begins a line, has the name of a
tool, and no unknown keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from wisp_runtime.server.answers.tools.format import Tool, ToolParser
from wisp_runtime.server.answers.tools.scanners.json_calls import JsonCallsParser

OPENER = "<|python_tag|>"


class Llama3Json:
    """Format ``llama3_json``."""

    name = "llama3_json"
    markers: tuple[str, ...] = (OPENER,)
    splits_thinking = False

    def is_used_by(self, template: str) -> bool:
        """Return whether a template asks for calls with ``parameters``."""
        return 'Respond in the format {"name": function name, "parameters"' in template

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """Return a parser for one answer."""
        return JsonCallsParser((OPENER,), names=frozenset(tool.name for tool in tools))
