"""Grammar of a chat's answer: of its prescribed format, of its calls, and of the channels around them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wisp_runtime.server.api.errors import unsupported

if TYPE_CHECKING:
    from wisp_runtime.server.parsing.chat_request import ChatRequest
    from wisp_runtime.server.parsing.tools import ToolUse
    from wisp_runtime.server.service import Service, TextCodec


async def answer_constraint(service: Service, request: ChatRequest, tools: ToolUse) -> str | None:
    """Return the grammar of the answer, of its calls or its prescribed format; None for any text.

    With both, the answer is calls, or a text in the format.

    Raises:
        ApiError: the format cannot be held, or the model's markup of calls is not known.
    """
    constraint = await service.grammars.constraint_of(request)
    if constraint is not None and not request.continue_final_message:
        constraint = _behind_channels(service.text, request, constraint)
    if not tools.callable:
        return constraint
    tool_format, tokenizer = service.text.tool_format, service.text.tokenizer
    if tool_format is None:
        raise unsupported(
            "tools",
            "The markup in which this model writes calls is not known: name it with --tool-parser "
            "(spec.runtime.toolParser).",
        )
    from wisp_runtime.server.structured.tool_calls import tool_constraint  # with grammars of markup

    special = tokenizer.grammar_tokens(tool_format.markers)
    if constraint is None or tools.is_required:
        return await tool_constraint(service.grammars, tools, tool_format, special)
    calls = await tool_constraint(service.grammars, replace(tools, is_required=True), tool_format, special)
    from wisp_runtime.server.structured.structure import either

    assert calls is not None, "required calls have a grammar"
    return either(calls, constraint)


def _behind_channels(text: TextCodec, request: ChatRequest, constraint: str) -> str:
    """Return the grammar of the complete answer; of a model with channels, its text is a message of them."""
    channels = text.channels
    if channels is None:
        return constraint
    if request.thinking_token_budget not in (None, -1):
        raise unsupported(
            "thinking_token_budget", "Beside a prescribed format, this model's thinking is not bounded."
        )
    from wisp_runtime.server.structured.structure import behind

    return behind(channels, text.tokenizer.grammar_tokens(channels.markers), constraint)
