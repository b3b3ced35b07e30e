"""The body of ``/v1/chat/completions`` and its messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator

from wisp_plan.memory.alternatives import MAX_ALTERNATIVES
from wisp_runtime.server.parsing.generation_request import Count, GenerationRequest
from wisp_runtime.server.parsing.hints import foreign_fields
from wisp_runtime.server.parsing.reasoning import Effort
from wisp_runtime.server.parsing.strict_model import StrictModel
from wisp_runtime.server.parsing.tools import MAX_TOOLS, ToolChoice, ToolField

MAX_MESSAGES = 4096  # an agent's session: each parallel call has a message of its own
MAX_DOCUMENTS = 1024
MAX_PARTS = 1024  # parts of one message; also its tool calls and annotations


UNREAD_FIELDS = frozenset(
    (
        "refusal",
        "annotations",
        "provider_specific_fields",
        "thinking_blocks",
        "parsed",
        "reasoning",
        "thinking",
    )
)
"""Fields of a message that are not passed to the template; of thinking's names it gets one."""


class TextPart(StrictModel):
    """A part of a message's content, as the OpenAPI document describes it; it may have ``cache_control``."""

    model_config = ConfigDict(extra="allow")
    type: Literal["text"]
    text: str


class RefusalPart(StrictModel):
    """A part of an assistant's message in which it refused."""

    model_config = ConfigDict(extra="allow")
    type: Literal["refusal"]
    refusal: str


ContentField = str | Annotated[list[TextPart | RefusalPart], Field(min_length=1, max_length=MAX_PARTS)]


class Message(StrictModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    tool_calls: Annotated[list[dict[str, Any]], Field(max_length=MAX_PARTS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same by its name in newer vLLM
    thinking: str | None = None  # and in templates of harmony
    # Fields of an assistant's message that clients send back as they keep it; none reaches the template.
    provider_specific_fields: Any = None
    thinking_blocks: Any = None
    parsed: Any = None
    refusal: str | None = None
    annotations: Annotated[list[Any], Field(max_length=MAX_PARTS)] | None = None
    audio: None = None
    function_call: None = None

    @field_validator("content", mode="before", json_schema_input_type=ContentField | None)
    @classmethod
    def _content_as_text(cls, value: Any) -> Any:
        """Join text parts by newlines; refuse parts that are not text."""
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list) or not value:
            raise ValueError("A message's content must be a string or a list of text parts.")
        if len(value) > MAX_PARTS:
            raise ValueError(f"A message has {len(value)} parts; at most {MAX_PARTS} are allowed.")
        return "\n".join(_text_of(part, index) for index, part in enumerate(value))


def _text_of(part: Any, index: int) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "refusal"):
        raise ValueError(f"Content part {index} is of type {kind!r}; this model only reads text parts.")
    text = part.get(kind)
    if not isinstance(text, str):
        raise ValueError(f"Content part {index} has no {kind!r} string.")
    return text


MessagesField = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]


def few_messages(value: Any) -> Any:
    """Return a field's messages as they came, or refuse them before a model of the first is built.

    Raises:
        ValueError: they are more than ``MAX_MESSAGES``.
    """
    if isinstance(value, list) and len(value) > MAX_MESSAGES:
        raise ValueError(f"'messages' has {len(value)} messages; at most {MAX_MESSAGES} are allowed.")
    return value


class ChatRequest(GenerationRequest):
    """The body of ``POST /v1/chat/completions``."""

    foreign = foreign_fields.CHAT

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    # Extensions: of the template, named as vLLM names them.
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: Annotated[list[dict[str, Any]], Field(max_length=MAX_DOCUMENTS)] | None = None
    tools: Annotated[list[ToolField], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    # Extensions of vLLM.
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = None
    include_reasoning: bool | None = None

    @field_validator("messages", mode="before", json_schema_input_type=MessagesField)
    @classmethod
    def _few_messages(cls, value: Any) -> Any:
        return few_messages(value)
