"""A conversation whose last message is to be continued: its text ends with that message, still open."""

from __future__ import annotations

from typing import Any

from wisp_runtime.server.api.errors import bad_request


def open_final_message(text: str, message: dict[str, Any]) -> str:
    """Return ``text``, a rendered conversation, up to the end of its last message's content.

    Args:
        message: the last message; templates may strip the blanks around its content.

    Raises:
        ApiError: the message has no text, or the template does not write it.
    """
    content = message["content"]
    if message["role"] != "assistant" or not isinstance(content, str) or not content.strip():
        raise bad_request(
            "'continue_final_message' needs a last message of the assistant, with text to be continued.",
            "continue_final_message",
            "invalid_value",
        )
    for written in (content, content.strip()):
        if (place := text.rfind(written)) >= 0:
            return text[: place + len(written)]
    raise bad_request(
        "The model's chat template does not write the last message as it was sent, so that it cannot be "
        "continued ('continue_final_message'). Send the text to /v1/completions.",
        "continue_final_message",
        "chat_template_failed",
    )
