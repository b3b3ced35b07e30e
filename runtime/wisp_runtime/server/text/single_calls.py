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
        by_call: dict[str, list[Message]] = {_text(call.get("id")): [] for call in calls}
        others = by_call[""] = []
        for result in results:
            by_call.get(_text(result.get("tool_call_id")), others).append(result)
        for position, call in enumerate(calls):
            yield _call_alone(message, call) if position else {**message, "tool_calls": [call]}
            yield from by_call.pop(number, ()) if (number := _text(call.get("id"))) else ()
        yield from others


def _text(given: Any) -> str:
    return given if isinstance(given, str) else ""


def _call_alone(message: Message, call: Message) -> Message:
    return {"role": message["role"], "content": "", "tool_calls": [call]}
