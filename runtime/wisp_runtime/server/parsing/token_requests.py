"""Bodies of ``/tokenize`` and ``/detokenize``, as vLLM's and llama.cpp's servers name their fields."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from wisp_runtime.server.parsing.chat_request import MAX_DOCUMENTS, MAX_MESSAGES, Message
from wisp_runtime.server.parsing.hints import foreign_fields
from wisp_runtime.server.parsing.reasoning import Effort
from wisp_runtime.server.parsing.strict_model import StrictModel
from wisp_runtime.server.parsing.tools import MAX_TOOLS, ToolChoice, ToolField

MAX_TEXT_CHARS = 1 << 20  # tokenizing so many takes a second and 100 MB
TEXTS = ("prompt", "content", "messages")
OF_MESSAGES = (
    *("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "documents"),
    *("tools", "tool_choice", "reasoning_effort"),
)
"""Fields that a chat completion has too: its prompt has the same tokens."""


class TokenizeRequest(StrictModel):
    """The body of ``POST /tokenize``: ``prompt`` or ``messages`` (vLLM), or ``content`` (llama.cpp)."""

    foreign = foreign_fields.TOKENIZE

    model: str | None = None
    prompt: Annotated[str, Field(max_length=MAX_TEXT_CHARS)] | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], Field(max_length=MAX_DOCUMENTS)] | None = None
    tools: Annotated[list[ToolField], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: Effort | None = None
    content: Annotated[str, Field(max_length=MAX_TEXT_CHARS)] | None = None
    add_special: bool | None = None
    with_pieces: bool | None = None
    # Refused unless they ask for the default.
    parse_special: Any = None
    chat_template: Any = None
    mm_processor_kwargs: Any = None

    @model_validator(mode="after")
    def _has_one_text(self) -> TokenizeRequest:
        given = [name for name in TEXTS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "Send one of 'prompt' (a text), 'messages' (a chat) and 'content' (a text, as llama.cpp "
                f"names it); the request has {' and '.join(map(repr, given)) or 'none'}."
            )
        if given != ["messages"]:
            stray = next((name for name in OF_MESSAGES if getattr(self, name) is not None), None)
            if stray is not None:
                raise ValueError(f"{stray!r} is for 'messages'; the request has {given[0]!r}.")
        return self


class DetokenizeRequest(StrictModel):
    """The body of ``POST /detokenize``."""

    foreign = foreign_fields.DETOKENIZE

    model: str | None = None
    tokens: list[int]
