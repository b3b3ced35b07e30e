"""Describe tools, calls and their results in words, for chat templates that do not know tools.

The markup is that of :mod:`wisp_runtime.server.answers.tools.hermes`, which most models have seen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_DESCRIPTION = """You can call functions. These are there, one JSON object a line:
<tools>
{tools}
</tools>
To call one, write nothing but a JSON object with its name and arguments between tags:
<tool_call>
{{"name": "<function>", "arguments": {{<arguments>}}}}
</tool_call>"""


def with_described_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return messages of the roles system, user and assistant, with text alone.

    The tools are described in the system message, calls are written into the assistant's messages, and
    results become messages of the user.

    Args:
        messages: messages of the OpenAI API, contents as text.
        tools: tools of the OpenAI API; none: only the history may have calls.
    """
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    description = _DESCRIPTION.format(tools=lines)
    if plain and plain[0]["role"] == "system":
        first = {**plain[0], "content": f"{plain[0]['content']}\n\n{description}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": description}, *plain]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [_written(call["function"]) for call in message["tool_calls"]]
    content = "\n".join([*([message["content"]] if message["content"] else ()), *calls])
    return {name: value for name, value in message.items() if name != "tool_calls"} | {"content": content}


def _written(function: dict[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
