"""Translate a conversation of Anthropic's API into messages of chat completions.

Pure. Successive messages of one role are one, as in Anthropic's API; results of tools become messages of
their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from wisp_runtime.server.api.anthropic.signature import text_of
from wisp_runtime.server.api.errors import bad_request
from wisp_runtime.server.parsing.anthropic.blocks import (
    Block,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    texts_of,
)
from wisp_runtime.server.parsing.anthropic.requests import CountTokensRequest, MessageField

_ROLE_OF_BLOCKS = {
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_use": "assistant",
    "tool_result": "user",
}
# Claude Code puts it in front of its system prompt, with a hash of each request: no prefix would be found.
_BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")


def chat_messages(request: CountTokensRequest) -> list[dict[str, Any]]:
    """Return the messages of a request as JSON of chat completions.

    A system message behind others becomes text of the user's: many templates take one at the beginning only.

    Raises:
        ApiError: 400; a block stands in a message of the wrong role, or a result has no call.
    """
    _check_roles(request.messages)
    system = list(takewhile(lambda message: message.role == "system", request.messages))
    messages = _system_message(request, system)
    placed = [
        (message.role, f"messages.{number}.content.{index}", block)
        for number, message in enumerate(request.messages)
        for index, block in enumerate(_blocks(message))
        if number >= len(system)
    ]
    calls: dict[str, str] = {}
    for is_answer, run in groupby(placed, key=lambda item: item[0] == "assistant"):
        if is_answer:
            messages.append(_assistant_message([block for _, _, block in run], calls))
        else:
            messages += _user_messages(list(run), calls)
    return messages


def _system_message(request: CountTokensRequest, leading: Sequence[MessageField]) -> list[dict[str, Any]]:
    texts = [_BILLING_LINE.sub("", text) for text in texts_of(request.system or ())]
    texts += [block.text for message in leading for block in _blocks(message) if isinstance(block, TextBlock)]
    text = "\n".join(text for text in texts if text)
    return [{"role": "system", "content": text}] if text else []


def _check_roles(messages: Sequence[MessageField]) -> None:
    for number, message in enumerate(messages):
        for index, block in enumerate(_blocks(message)):
            role = _ROLE_OF_BLOCKS.get(block.type, message.role)
            if role != message.role:
                raise bad_request(
                    f"Blocks of type {block.type!r} belong in messages of the role {role!r}, "
                    f"not {message.role!r}.",
                    f"messages.{number}.content.{index}",
                    "invalid_value",
                )
    if any(block.type == "tool_use" for block in _blocks(messages[-1])):
        raise bad_request(
            "The conversation ends with a call: send its result as a 'tool_result' block of the user.",
            f"messages.{len(messages) - 1}",
            "invalid_value",
        )


def _blocks(message: MessageField) -> Sequence[Block]:
    content = message.content
    if isinstance(content, str):
        return [TextBlock(type="text", text=content)]
    return content or [TextBlock(type="text", text="")]


def _assistant_message(blocks: Sequence[Block], calls: dict[str, str]) -> dict[str, Any]:
    """Return a former answer; its calls are added to ``calls``: names by id."""
    thoughts = [
        block.thinking or text_of(block.signature) for block in blocks if isinstance(block, ThinkingBlock)
    ]
    uses = [block for block in blocks if isinstance(block, ToolUseBlock)]
    calls |= {use.id: use.name for use in uses}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "\n".join(block.text for block in blocks if isinstance(block, TextBlock)),
    }
    if thinking := "\n".join(filter(None, thoughts)):
        message["reasoning_content"] = thinking
    if uses:
        message["tool_calls"] = [
            {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.input}}
            for use in uses
        ]
    return message


def _user_messages(
    placed: Sequence[tuple[str, str, Block]], calls: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a message of each result, and one of the texts between results."""
    messages: list[dict[str, Any]] = []
    for is_result, run in groupby(placed, key=lambda item: isinstance(item[2], ToolResultBlock)):
        if is_result:
            messages += [_result(place, block, calls) for _, place, block in run]
        else:
            texts = [_user_text(role, block) for role, _, block in run if isinstance(block, TextBlock)]
            messages.append({"role": "user", "content": "\n".join(texts)})
    return messages


def _user_text(role: str, block: TextBlock) -> str:
    return block.text if role == "user" else f"<system-reminder>\n{block.text}\n</system-reminder>"


def _result(place: str, block: Block, calls: Mapping[str, str]) -> dict[str, Any]:
    assert isinstance(block, ToolResultBlock)
    if block.tool_use_id not in calls:
        raise bad_request(
            f"No 'tool_use' block before this result has the id {block.tool_use_id!r}.",
            f"{place}.tool_use_id",
            "invalid_value",
        )
    text = "\n".join(texts_of(block.content or ()))
    return {
        "role": "tool",
        "tool_call_id": block.tool_use_id,
        "name": calls[block.tool_use_id],
        "content": f"Error: {text}" if block.is_error else text,
    }
