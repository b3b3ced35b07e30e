"""Bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``.

Fields that cannot change the answer are accepted and ignored; others that this server does not implement are
refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, field_validator, model_validator

from wisp_runtime.server.api.errors import bad_request
from wisp_runtime.server.parsing.anthropic.blocks import Content, MarkedModel, Texts
from wisp_runtime.server.parsing.anthropic.tools import ToolChoice, ToolDefinition
from wisp_runtime.server.parsing.chat_request import MAX_MESSAGES, few_messages
from wisp_runtime.server.parsing.generation_request import MAX_STOP_CHARS, MAX_STOPS, Count, Share
from wisp_runtime.server.parsing.hints import foreign_fields
from wisp_runtime.server.parsing.hints.foreign_tools import refuse_foreign_message_choice
from wisp_runtime.server.parsing.refusals import Refusal, without_neutral
from wisp_runtime.server.parsing.strict_model import StrictModel, by_type
from wisp_runtime.server.parsing.tools import MAX_TOOLS

_OWN_SERVERS = "It needs Anthropic's servers; leave it out."
REFUSED = {
    "container": Refusal((), _OWN_SERVERS),
    "mcp_servers": Refusal(([],), "Connect to MCP servers in the client and send their tools as 'tools'."),
    "compaction": Refusal((), "Shorten the conversation in the client."),
    "fallbacks": Refusal(([],), "One model is served here; leave it out."),
    "fallback_credit_token": Refusal((), _OWN_SERVERS),
    # The SDK's tool runner goes on without the field at this code.
    "thread": Refusal(
        (), "Send the complete conversation; its prefix is found in the cache.", "thread_unsupported_request"
    ),
    "billing_policy": Refusal((), _OWN_SERVERS),
    "inference_geo": Refusal(("global",), "Requests are computed where this server runs; leave it out."),
    "speed": Refusal(("standard",), "There is one speed; leave it out."),
}
"""Fields of Anthropic's that are refused."""


class MessageField(StrictModel):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Content


class EnabledThinking(StrictModel):
    """Thinking of at most so many tokens."""

    type: Literal["enabled"]
    budget_tokens: Count
    display: Literal["summarized", "omitted"] | None = None


class AdaptiveThinking(StrictModel):
    """Thinking for as long as the model decides."""

    type: Literal["adaptive"]
    display: Literal["summarized", "omitted"] | None = None


class DisabledThinking(StrictModel):
    """No thinking."""

    type: Literal["disabled"]


Thinking = Annotated[
    Annotated[EnabledThinking, Tag("(enabled)")]
    | Annotated[AdaptiveThinking, Tag("(adaptive)")]
    | Annotated[DisabledThinking, Tag("(disabled)")],
    by_type("enabled", "adaptive", "disabled"),
]


class OutputFormat(StrictModel):
    """Format of the answer's text."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(StrictModel):
    """Effort and format of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class ContextEdit(StrictModel):
    """An edit of the conversation that Anthropic's servers make; only the one that keeps all is accepted."""

    type: Literal["clear_thinking_20251015"]
    keep: Any

    @field_validator("keep")
    @classmethod
    def _keeps_all(cls, value: Any) -> Any:
        if value not in ("all", {"type": "all"}):
            raise ValueError("Conversations are not edited here: only 'keep': 'all' is served.")
        return value


class ContextManagement(StrictModel):
    """Edits of the conversation."""

    edits: Annotated[list[ContextEdit], Field(max_length=8)] | None = None


class Metadata(StrictModel):
    """Data on the request."""

    user_id: str | None = None


class Diagnostics(StrictModel):
    """A request for the reason why the cache did not hold the prompt."""

    previous_message_id: str | None = None


MessagesField = Annotated[list[MessageField], Field(min_length=1, max_length=MAX_MESSAGES)]


class CountTokensRequest(MarkedModel):
    """The body of ``POST /v1/messages/count_tokens``."""

    foreign = foreign_fields.MESSAGES

    model: str
    messages: Annotated[list[MessageField], Field(min_length=1)]
    system: Texts | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    context_management: ContextManagement | None = None
    # Accepted and ignored: they cannot change the answer.
    user_profile_id: str | None = None
    workspace_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_refused(cls, value: Any) -> Any:
        return without_neutral(value, REFUSED) if isinstance(value, dict) else value

    @field_validator("tool_choice", mode="before", json_schema_input_type=ToolChoice | None)
    @classmethod
    def _is_own_choice(cls, value: Any) -> Any:
        refuse_foreign_message_choice(value)
        return value

    @field_validator("messages", mode="before", json_schema_input_type=MessagesField)
    @classmethod
    def _few_messages(cls, value: Any) -> Any:
        return few_messages(value)


class MessagesRequest(CountTokensRequest):
    """The body of ``POST /v1/messages``."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]], Field(max_length=MAX_STOPS)
        ]
        | None
    ) = None
    temperature: Share | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    diagnostics: Diagnostics | None = None
    # Accepted and ignored: they cannot change the answer.
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    @model_validator(mode="after")
    def _has_tokens_for_an_answer(self) -> MessagesRequest:
        thinking = self.thinking
        if isinstance(thinking, EnabledThinking) and thinking.budget_tokens >= self.max_tokens:
            raise bad_request(
                f"'max_tokens' ({self.max_tokens}) must be greater than 'thinking.budget_tokens' "
                f"({thinking.budget_tokens}): the answer comes after the thinking.",
                "thinking.budget_tokens",
            )
        return self


def shows_thinking(request: MessagesRequest) -> bool:
    """Return whether an answer shows its thinking; otherwise a signature carries it."""
    thinking = request.thinking
    return thinking is None or isinstance(thinking, DisabledThinking) or thinking.display != "omitted"
