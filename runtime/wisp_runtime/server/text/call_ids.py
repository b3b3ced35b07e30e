"""Ids of tool calls as a template wants them: Mistral's refuse those that are not nine letters or digits."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

from wisp_runtime.server.text.template_messages import ChatTemplate

ID_CHARS = 9
_WANTS_SHORT = re.compile(rf"\bid\s*\|\s*length\s*!=\s*{ID_CHARS}\b")
_SHORT = re.compile(rf"[A-Za-z0-9]{{{ID_CHARS}}}")


def with_call_ids(messages: list[dict[str, Any]], template: ChatTemplate) -> list[dict[str, Any]]:
    """Return the messages with ids that the template takes; an id always becomes the same.

    Args:
        messages: messages of the OpenAI API.
        template: the model's.
    """
    return [_shortened(message) for message in messages] if _WANTS_SHORT.search(template.source) else messages


def _shortened(message: dict[str, Any]) -> dict[str, Any]:
    message = dict(message)
    if isinstance(given := message.get("tool_call_id"), str):
        message["tool_call_id"] = _short(given)
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [
            call | {"id": _short(call["id"])} if isinstance(call.get("id"), str) else call for call in calls
        ]
    return message


def _short(given: str) -> str:
    if _SHORT.fullmatch(given):
        return given
    return blake2b(given.encode(), digest_size=ID_CHARS).hexdigest()[:ID_CHARS]
