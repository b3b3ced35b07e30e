"""Messages with one call each, for templates that write the first call of a message alone (gpt-oss's)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from wisp_runtime.server.text.template_messages import ChatTemplate

_TAKES_FIRST = re.compile(r"\btool_calls\[0\]")
_TAKES_EACH = re.compile(r"\bin\s+[\w.]*\btool_calls\b")

Message = dict[str, Any]


def with_single_calls(messages: list[Message], template: ChatTemplate) -> list[Message]:
    """Return the messages; where the template would drop calls, each with its result behind it.

    A message with several calls becomes one for each: the first has its text and thinking. Results are found
    by ``tool_call_id``; others follow the last call.
    """
    source = template.source
    if not _TAKES_FIRST.search(source) or _TAKES_EACH.search(source):
        return messages
    return list(_split(messages))


def _split(messages: list[Message]) -> Iterator[Message]:
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            yield message
            continue
        results = list(takewhile(lambda later: later["role"] == "tool", messages[at:]))
        at += len(results)
        for number, call in enumerate(calls):
            own = [result for result in results if _answers(result, call)]
            results = [result for result in results if not _answers(result, call)]
            yield {**message, "tool_calls": [call]} if number == 0 else _call_alone(message, call)
            yield from own
        yield from results


def _answers(result: Message, call: Message) -> bool:
    return call.get("id") is not None and result.get("tool_call_id") == call["id"]


def _call_alone(message: Message, call: Message) -> Message:
    return {"role": message["role"], "content": "", "tool_calls": [call]}
