"""Grammar of an answer that must be a call, or whose calls must be valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wisp_runtime.server.answers.tools.format import Tool, ToolFormat
from wisp_runtime.server.answers.tools.grammars.lark import LarkRules


def has_grammar(tools: Sequence[Tool], *, is_required: bool) -> bool:
    """Return whether an answer that may call ``tools`` is held to a grammar."""
    return is_required or any(tool.is_strict for tool in tools)


def tool_grammar(
    tool_format: ToolFormat,
    tools: Sequence[Tool],
    *,
    is_required: bool,
    is_parallel: bool,
    special: Mapping[str, int],
) -> str | None:
    """Return a grammar (llguidance's Lark) of an answer; None if it may be any text.

    Args:
        tool_format: markup of the model's calls.
        tools: functions that the answer may call, at least one.
        is_required: whether it must be a call, or several. Otherwise text may come before, between and
            behind calls, if one of the tools is strict; arguments follow the schemas of all.
        is_parallel: whether it may be several.
        special: ids of those of the format's markers that grammars see as one token.

    Raises:
        GrammarTooLarge: the schemas combine to too much.
    """
    if not has_grammar(tools, is_required=is_required):
        return None
    rules = LarkRules(special)
    if not is_required:
        return rules.source(tool_format.answer(rules, tools, is_parallel=is_parallel))
    calls = rules.rule(tool_format.calls(rules, tools, is_parallel=is_parallel))
    if tool_format.splits_thinking:
        return rules.source(calls)
    lines = rules.terminal(r"/\n{1,2}/")  # as models write them behind their thinking
    return rules.source(f"{lines}? {calls}")
