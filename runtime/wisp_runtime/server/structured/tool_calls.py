"""Grammars of answers that must be tool calls, or whose calls must be valid; checked."""

from __future__ import annotations

import json
from collections.abc import Mapping

from wisp_runtime.server.answers.tools.format import Tool, ToolFormat
from wisp_runtime.server.answers.tools.grammar import tool_grammar
from wisp_runtime.server.answers.tools.grammars.schemas import arguments_schema
from wisp_runtime.server.parsing.tools import ToolUse
from wisp_runtime.server.structured.checks import GrammarChecks
from wisp_runtime.server.structured.structure import Structure, lark_grammar


async def tool_constraint(
    checks: GrammarChecks, tools: ToolUse, tool_format: ToolFormat, special: Mapping[str, int]
) -> str | None:
    """Return the grammar of the answer to a request with ``tools``; None where any text will do.

    Args:
        checks: checks of the server.
        tools: tools of the request, of which some may be called.
        tool_format: markup of the calls.
        special: ids of those of the format's markers that grammars see as one token.

    Raises:
        ApiError: as of :meth:`GrammarChecks.check`; it names the tool whose schema is the reason.
    """
    unmarked = _grammar(tools, tool_format, {})
    if unmarked is None:
        return None
    for tool in tools.callable:
        await checks.check(Structure(_parameters_field(tool, tools), _schema_grammar(tool)))
    await checks.check(Structure("tools", unmarked))  # a check knows no tokens: markers are text to it
    return _grammar(tools, tool_format, special)


def _grammar(tools: ToolUse, tool_format: ToolFormat, special: Mapping[str, int]) -> str | None:
    grammar = tool_grammar(
        tool_format,
        tools.callable,
        is_required=tools.is_required,
        is_parallel=tools.is_parallel,
        special=special,
    )
    return lark_grammar(grammar) if grammar is not None else None


def _schema_grammar(tool: Tool) -> str:
    return json.dumps({"grammars": [{"json_schema": arguments_schema(tool)}]})


def _parameters_field(tool: Tool, tools: ToolUse) -> str:
    names = [described["function"]["name"] for described in tools.described]
    return f"tools.{names.index(tool.name)}.function.parameters"
