"""The body of ``POST /v1/responses``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from wisp_plan.memory.alternatives import MAX_ALTERNATIVES
from wisp_runtime.server.parsing.generation_request import (
    MAX_SEED,
    MIN_SEED,
    BiasField,
    Count,
    Penalty,
    PromptCacheOptions,
    Share,
    StopField,
)
from wisp_runtime.server.parsing.refusals import Refusal, without_neutral, without_refused
from wisp_runtime.server.parsing.responses.items import MAX_ITEMS, Identity, InputItem, input_items
from wisp_runtime.server.parsing.responses.tools import ResponsesTool, ToolChoice, check_choice, check_tools
from wisp_runtime.server.parsing.strict_model import StrictModel
from wisp_runtime.server.parsing.tools import MAX_TOOLS
from wisp_runtime.server.structured.fields import StructuredOutputs

MAX_METADATA = 16
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    # Of tools that do not run here, and of images: there is never anything of theirs to include.
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
INCLUDED = tuple(value for value in get_args(Include) if value not in (LOGPROBS, ENCRYPTED))
"""What every response includes, as there is never any of it."""
InputField = str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_ITEMS)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=MAX_METADATA),
]

REFUSED = {
    "conversation": Refusal((), "Continue a response with previous_response_id, or send all items as input."),
    "prompt": Refusal((), "Templates of prompts are not kept here: send instructions and input."),
    "messages": Refusal((), "Send them as 'input'."),
    "max_tokens": Refusal((), "Set max_output_tokens."),
    "max_completion_tokens": Refusal((), "Set max_output_tokens."),
    "n": Refusal((1,), "A response is one answer: send several requests."),
    "logprobs": Refusal((False,), f"Set include to [{LOGPROBS!r}], and top_logprobs."),
    "response_format": Refusal(({"type": "text"},), "Set text.format."),
    "reasoning_effort": Refusal((), "Set reasoning.effort."),
    "system": Refusal((), "Send it as 'instructions'."),
    "stop_sequences": Refusal(([],), "Set stop."),
    "thinking": Refusal((), "Set reasoning.effort; 'none' turns thinking off."),
    "output_config": Refusal(({},), "Set reasoning.effort and text.format."),
    "output_format": Refusal((), "Set text.format."),
    "max_tokens_to_sample": Refusal((), "Set max_output_tokens."),
    "verbosity": Refusal(("medium",), "Set text.verbosity."),
    "context_management": Refusal(
        ([],), "The context is never shortened here: leave items out in the client."
    ),
    "background_options": Refusal(
        ({}, {"completion_window": "soonest"}), "Background responses begin at once here."
    ),
    "access_programs": Refusal(({},), "There are no such programs here."),
    "image": Refusal(({},), "Models here read text only."),
}
"""Fields of OpenAI's Responses or of its chat that a Responses body cannot have here."""
PASSED = (
    *("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("top_k", "min_p", "repetition_penalty", "ignore_eos", "stop_token_ids", "cache_salt"),
    *("parallel_tool_calls", "chat_template_kwargs", "thinking_token_budget", "repetition_detection"),
    *("include_stop_str_in_output", "skip_special_tokens", "structured_outputs"),
)
"""Fields that a chat's body has under the same name, and checks."""


def _passed(value: Any) -> Any:
    return value


class ReasoningOptions(StrictModel):
    """How much the model thinks, and whether its thinking comes as a summary."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None

    @property
    def shown_summary(self) -> str | None:
        """The kind of summary asked for, by either name."""
        return self.summary or self.generate_summary


class TextFormat(StrictModel):
    """Format of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _complete(self) -> TextFormat:
        if self.type == "json_schema" and (self.name is None or self.schema_ is None):
            raise ValueError("A format of type 'json_schema' needs 'name' and 'schema'.")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the format as a response shows it."""
        if self.type != "json_schema":
            return {"type": self.type}
        names = ("type", "name", "description", "strict")
        return {**{name: getattr(self, name) for name in names}, "schema": self.schema_}

    def for_chat(self) -> dict[str, Any]:
        """Return the format as a chat's ``response_format``."""
        if self.type != "json_schema":
            return {"type": self.type}
        fields = {"name": self.name, "description": self.description, "strict": self.strict}
        given = {name: value for name, value in fields.items() if value is not None}
        return {"type": self.type, "json_schema": {**given, "schema": self.schema_}}


class TextOptions(StrictModel):
    """Format and length of the text."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseStreamOptions(StrictModel):
    """Options of a stream."""

    include_obfuscation: bool | None = None  # accepted: padding against eavesdroppers, which we never add


class ResponsesRequest(StrictModel):
    """The body of ``POST /v1/responses``."""

    model: str
    input: list[InputItem]
    instructions: str | None = None
    previous_response_id: Identity | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    include: Annotated[list[Include], Field(max_length=64)] | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None  # of tools that the server runs: there are none
    metadata: Metadata | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    # Passed on to a chat's body, which checks them.
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    parallel_tool_calls: bool | None = None
    seed: Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)] | None = None
    stop: Any = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Any = None
    top_k: Any = None
    min_p: Any = None
    repetition_penalty: Any = None
    ignore_eos: Any = None
    stop_token_ids: Any = None
    cache_salt: Any = None
    chat_template_kwargs: Any = None
    thinking_token_budget: Any = None
    repetition_detection: Any = None
    include_stop_str_in_output: Any = None
    skip_special_tokens: Any = None
    structured_outputs: StructuredOutputs | None = None
    # Accepted and shown again: they cannot change the output.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    session_id: str | None = None
    client_metadata: dict[str, Any] | None = None  # of Codex

    @model_validator(mode="before")
    @classmethod
    def _without_refused(cls, value: Any) -> Any:
        """Refuse fields by name with a remedy; drop those that ask for what happens anyway."""
        if not isinstance(value, dict):
            return value
        return without_refused(without_neutral(value, REFUSED), cls.model_fields)

    _input = field_validator("input", mode="before", json_schema_input_type=InputField)(input_items)
    _stop = field_validator("stop", mode="plain", json_schema_input_type=StopField | None)(_passed)
    _biases = field_validator("logit_bias", mode="plain", json_schema_input_type=BiasField | None)(_passed)
    _tools = field_validator("tools", mode="before")(check_tools)
    _choice = field_validator("tool_choice", mode="before")(check_choice)

    def includes(self, name: str) -> bool:
        """Return whether ``include`` has ``name``."""
        return name in (self.include or ())

    @property
    def is_stored(self) -> bool:
        """Whether the response is kept, as it is unless the request says otherwise."""
        return self.store is not False
