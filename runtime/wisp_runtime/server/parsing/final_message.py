"""A conversation whose last message is to be continued: its text ends with that message, still open."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from wisp_runtime.server.api.errors import bad_request


def marked_final_message(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the messages with a mark behind the last one's text, and the mark.

    The text itself may be anywhere in what a template writes; the mark, which is random, is not.

    Raises:
        ApiError: the last message is not the assistant's, or has no text.
    """
    last = messages[-1]
    content = last["content"]
    if last["role"] != "assistant" or not isinstance(content, str) or not content.strip():
        raise bad_request(
            "'continue_final_message' needs a last message of the assistant, with text to be continued.",
            "continue_final_message",
            "invalid_value",
        )
    mark = f"<{uuid.uuid4().hex}>"
    return [*messages[:-1], {**last, "content": content + mark}], mark


def open_final_message(text: str, mark: str) -> str:
    """Return ``text``, a rendered conversation, up to ``mark``.

    Raises:
        ApiError: the template does not write the last message's text.
    """
    place = text.rfind(mark)
    if place >= 0:
        return text[:place]
    raise bad_request(
        "The model's chat template does not write the last message as it was sent, so that it cannot be "
        "continued ('continue_final_message'). Send the text to /v1/completions.",
        "continue_final_message",
        "chat_template_failed",
    )
