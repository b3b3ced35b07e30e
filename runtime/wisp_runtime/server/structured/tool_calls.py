"""Grammars of answers that must be tool calls, or whose calls must be valid; checked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from wisp_runtime.server.answers.tools.format import Tool, ToolFormat
from wisp_runtime.server.answers.tools.grammar import has_grammar, tool_grammar
from wisp_runtime.server.answers.tools.grammars.lark import GrammarTooLarge
from wisp_runtime.server.answers.tools.grammars.schemas import arguments_schema
from wisp_runtime.server.parsing.tools import ToolUse
from wisp_runtime.server.structured.checks import GrammarChecks, refused
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
        ApiError: errors of :meth:`GrammarChecks.check`; one names the tool whose schema is the reason,
            or all of them if they are too large together.
    """
    if not has_grammar(tools.callable, is_required=tools.is_required):
        return None
    schemas = await asyncio.to_thread(_schema_structures, tools)
    for schema in schemas:  # before their grammar is built, which reads them as sound ones
        await checks.check(schema)
    unmarked = await asyncio.to_thread(_grammar, tools, tool_format, {})
    await checks.check(Structure("tools", unmarked))  # a check knows no tokens: markers are text to it
    return await asyncio.to_thread(_grammar, tools, tool_format, special) if special else unmarked


def _grammar(tools: ToolUse, tool_format: ToolFormat, special: Mapping[str, int]) -> str:
    try:
        grammar = tool_grammar(
            tool_format,
            tools.callable,
            is_required=tools.is_required,
            is_parallel=tools.is_parallel,
            special=special,
        )
    except GrammarTooLarge as error:
        raise refused("tools", str(error)) from error
    assert grammar is not None, "asked for only where there is one"
    return lark_grammar(grammar)


def _schema_structures(tools: ToolUse) -> list[Structure]:
    return [Structure(_parameters_field(tool, tools), _schema_grammar(tool)) for tool in tools.callable]


def _schema_grammar(tool: Tool) -> str:
    return json.dumps({"grammars": [{"json_schema": arguments_schema(tool)}]})


def _parameters_field(tool: Tool, tools: ToolUse) -> str:
    names = [described["function"]["name"] for described in tools.described]
    return f"tools.{names.index(tool.name)}.function.parameters"
