"""Rules of calls that are JSON objects."""

from __future__ import annotations

import json
from collections.abc import Sequence

from wisp_runtime.server.answers.tools.format import Tool
from wisp_runtime.server.answers.tools.grammars.lark import LarkRules, either, quoted
from wisp_runtime.server.answers.tools.grammars.schemas import arguments_schema


def call_object(rules: LarkRules, tools: Sequence[Tool], key: str) -> str:
    """Return the symbol of ``{"name": …, KEY: {…}}`` of one of the tools."""
    return rules.rule(either(_object(rules, tool, key) for tool in tools))


def _object(rules: LarkRules, tool: Tool, key: str) -> str:
    head = f'{{"name": {json.dumps(tool.name)}, "{key}": '
    return f'{quoted(head)} {rules.json(arguments_schema(tool))} "}}"'
