"""Hermes' markup: ``<tool_call>`` around a JSON object. Qwen 2.5, Qwen 3, SmolLM 3 and many others write it.

SmolLM 2 puts a list of objects between the tags. An object ends the call, even if the closing tag is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from wisp_runtime.server.answers.tools.format import Tool, ToolParser
from wisp_runtime.server.answers.tools.scanners.json_calls import JsonCallsParser

OPENER, CLOSER = "<tool_call>", "</tool_call>"


class Hermes:
    """Format ``hermes``."""

    name = "hermes"
    markers: tuple[str, ...] = (OPENER, CLOSER)
    splits_thinking = False

    def is_used_by(self, template: str) -> bool:
        """Return whether a template shows calls as JSON in ``<tool_call>``, not as XML (Qwen3-Coder, GLM)."""
        return OPENER in template and "<function=" not in template and "<arg_key>" not in template

    def parser(self, _tools: Sequence[Tool]) -> ToolParser:
        """Return a parser for one answer."""
        return JsonCallsParser((OPENER,), (CLOSER,))
