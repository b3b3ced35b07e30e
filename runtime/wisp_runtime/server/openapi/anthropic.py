"""Models of the answers of Anthropic's API, for the OpenAPI document; see :mod:`.answers`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from wisp_runtime.server.openapi.answers import Answer


class AnthropicErrorCode(Answer):
    """A word for programs."""

    error_code: str


class AnthropicErrorDetails(Answer):
    """What is wrong, where, and what to do."""

    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "overloaded_error",
    ]
    message: str
    details: AnthropicErrorCode | None = None


class AnthropicError(Answer):
    """An error in Anthropic's shape."""

    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str


class AnsweredText(Answer):
    """Text."""

    type: Literal["text"]
    text: str


class AnsweredThinking(Answer):
    """Thinking; empty where the client wants it omitted."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class AnsweredToolUse(Answer):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ThinkingDetails(Answer):
    """Tokens of thinking, its markers included."""

    thinking_tokens: int


class MessageUsage(Answer):
    """Numbers of tokens; those of the prompt are the sum of three."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingDetails | None = None


class AnthropicMessage(Answer):
    """The answer to a conversation."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Annotated[AnsweredText | AnsweredThinking | AnsweredToolUse, Field(discriminator="type")]]
    stop_reason: Literal[
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
    ]
    stop_sequence: str | None
    stop_details: None
    usage: MessageUsage
    diagnostics: dict[str, Any] | None = None
    context_management: dict[str, list[Any]] | None = None


class CountedTokens(Answer):
    """Tokens of a conversation."""

    input_tokens: int


class AnthropicModel(Answer):
    """A name of the model."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class AnthropicModels(Answer):
    """A page of the names of the model."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
