"""Models of the Responses API's answers, for the OpenAPI document; see :mod:`.answers`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from wisp_runtime.server.openapi.answers import Answer, TokenLogprob
from wisp_runtime.server.parsing.responses.items import Status
from wisp_runtime.server.parsing.responses.tools import AllowedChoice, FunctionChoice


class InputText(Answer):
    """A part of a message to the model."""

    type: Literal["input_text"]
    text: str


class OutputText(Answer):
    """A part of a message of the model."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob] = Field(default_factory=list)


class InputMessage(Answer):
    """A message to the model."""

    id: str
    type: Literal["message"]
    status: Status
    role: Literal["user", "system", "developer"]
    content: list[InputText]
    phase: Literal["commentary", "final_answer"] | None = None


class OutputMessage(Answer):
    """A message of the model."""

    id: str
    type: Literal["message"]
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]
    phase: Literal["commentary", "final_answer"] | None = None


class ReasoningText(Answer):
    """Thinking, or a summary of it."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningOutput(Answer):
    """Thinking of the model."""

    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[ReasoningText]
    content: list[ReasoningText]
    encrypted_content: str = ""


class FunctionCallOutput(Answer):
    """A call of a function; its arguments are JSON text."""

    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    arguments: str
    namespace: str = ""
    caller: dict[str, Any] = Field(default_factory=dict)
    created_by: str = ""


class FunctionOutput(Answer):
    """The result of a call."""

    id: str
    type: Literal["function_call_output"]
    status: Status
    call_id: str
    output: str | list[InputText]
    name: str = ""
    namespace: str = ""
    caller: dict[str, Any] = Field(default_factory=dict)
    created_by: str = ""


class ShownTool(Answer):
    """A function that the model could call."""

    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class ShownNamespace(Answer):
    """Functions under a common name."""

    type: Literal["namespace"]
    name: str
    description: str | None
    tools: list[ShownTool]


class ShownText(Answer):
    """Format and length of the text."""

    format: dict[str, Any]
    verbosity: Literal["low", "medium", "high"]


class ShownReasoning(Answer):
    """Options of the thinking."""

    effort: str | None
    summary: str | None


class InputDetails(Answer):
    """Details of a prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Answer):
    """Details of an answer's tokens."""

    reasoning_tokens: int


class ResponseUsage(Answer):
    """Numbers of tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(Answer):
    """Reason for which a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(Answer):
    """Reason for which a response is incomplete."""

    reason: Literal["max_output_tokens"]
    stop_reason: str = ""


class ResponseObject(Answer):
    """A response."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[OutputMessage | ReasoningOutput | FunctionCallOutput]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ShownReasoning
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: ShownText
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedChoice
    tools: list[ShownTool | ShownNamespace]
    top_logprobs: int
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: Literal["auto", "disabled"]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class ResponseItems(Answer):
    """A page of items."""

    object: Literal["list"]
    first_id: str
    last_id: str
    has_more: bool
    data: list[InputMessage | OutputMessage | ReasoningOutput | FunctionCallOutput | FunctionOutput]


class DeletedResponse(Answer):
    """A response that was deleted."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(Answer):
    """Number of a prompt's tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int
