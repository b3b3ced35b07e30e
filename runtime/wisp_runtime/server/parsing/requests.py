"""Bodies of ``/v1/chat/completions`` and ``/v1/completions``.

Types are strict and unknown keys are refused: dropping a mistyped ``max_token`` would silently change the
output. Fields that cannot change it (``user``, ``metadata``, …) are accepted and ignored; unsupported
fields that would are refused by name in ``refuse_unsupported``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from wisp_plan.families.generation import MAX_REPETITION, MIN_REPETITION
from wisp_plan.memory.buffers.sampling import MAX_ALTERNATIVES
from wisp_runtime.server.api.errors import unsupported

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 64
MAX_SALT_CHARS = 256
MAX_MESSAGES = 1024
MAX_PARTS = 1024  # parts of one message; also its tool calls and annotations
MAX_SEED = (1 << 64) - 1
MIN_SEED = -(1 << 63)
MAX_CHOICES = 128
MAX_PROMPTS = 1024
MAX_BIASES = 1024  # a GPU holds 4,096 biases and penalties a sequence (engine/execution/sampler.py)

Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        """Refuse an object of more fields than there are: each unknown one would make an error of its own."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            unknown = next(name for name in value if name not in cls.model_fields)
            raise ValueError(f"Unknown parameter: {unknown!r}, and {len(value)} fields altogether.")
        return value


class StreamOptions(_Strict):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # accepted: padding against eavesdroppers, which we never add


class GenerationRequest(_Strict):
    """Fields of both endpoints."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Count | None = None
    stop: list[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    seed: Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Bias] | None = None
    # Extensions, named as vLLM names them.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION, le=MAX_REPETITION)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_STOP_TOKENS)] | None = (
        None
    )
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    # Accepted and ignored: they cannot change the output.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_as_list(cls, value: Any) -> Any:
        stops = [value] if isinstance(value, str) else value
        if stops is None:
            return None
        if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
            raise ValueError("'stop' must be a string or a list of strings, none of them empty.")
        if len(stops) > MAX_STOPS:
            raise ValueError(f"'stop' has {len(stops)} strings; at most {MAX_STOPS} are allowed.")
        if (longest := max(map(len, stops), default=0)) > MAX_STOP_CHARS:
            raise ValueError(
                f"'stop' has a string of {longest} characters; at most {MAX_STOP_CHARS} are allowed."
            )
        return stops

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _few_biases(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_BIASES:
            raise ValueError(f"'logit_bias' names {len(value)} tokens; at most {MAX_BIASES} are allowed.")
        return value


class Message(_Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    tool_calls: Annotated[list[dict[str, Any]], Field(max_length=MAX_PARTS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    # Fields of an assistant's message that the official clients send back.
    refusal: str | None = None
    annotations: Annotated[list[Any], Field(max_length=MAX_PARTS)] | None = None
    audio: None = None
    function_call: None = None

    @field_validator("content", mode="before")
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


class ChatRequest(GenerationRequest):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # extension: names for the template
    # Refused unless they ask for the default.
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    @field_validator("messages", mode="before")
    @classmethod
    def _few_messages(cls, value: Any) -> Any:
        """Refuse before a model of the first is built."""
        if isinstance(value, list) and len(value) > MAX_MESSAGES:
            raise ValueError(f"'messages' has {len(value)} messages; at most {MAX_MESSAGES} are allowed.")
        return value


class CompletionRequest(GenerationRequest):
    """The body of ``POST /v1/completions``. ``prompt`` is one or several, as text or as token ids."""

    prompt: list[str | list[int]]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    # Refused unless they ask for the default.
    suffix: Any = None
    best_of: Any = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompts_as_list(cls, value: Any) -> Any:
        """Normalize text, texts, token ids and lists of token ids to one list."""
        prompts = [value] if isinstance(value, str) or _is_token_list(value) else value
        if not isinstance(prompts, list) or not prompts:
            raise ValueError("'prompt' must be a string, a list of strings, token ids, or a list of those.")
        if len(prompts) > MAX_PROMPTS:
            raise ValueError(f"'prompt' has {len(prompts)} prompts; at most {MAX_PROMPTS} are allowed.")
        for index, prompt in enumerate(prompts):
            if not isinstance(prompt, str) and not _is_token_list(prompt):
                raise ValueError(f"Prompt {index} is neither a string nor a list of token ids (integers).")
        return prompts


def _is_token_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


# Field → (values that ask for the default, remedy).
UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "tools": (([],), "Describe the tools in a message and parse the answer."),
    "tool_choice": (("none", "auto"), "This server calls no tools."),
    "parallel_tool_calls": ((True, False), "This server calls no tools."),
    "functions": (([],), "Describe the functions in a message and parse the answer."),
    "function_call": (("none", "auto"), "This server calls no functions."),
    "response_format": (({"type": "text"},), "Ask for the format in a message."),
    "modalities": ((["text"],), "Answers are text only."),
    "audio": ((), "Answers are text only."),
    "prediction": ((), "Leave it out."),
    "reasoning_effort": ((), "Set what the model's template knows in chat_template_kwargs."),
    "verbosity": ((), "Ask for it in a message."),
    "web_search_options": ((), "This server reads nothing from the web."),
    "suffix": (("",), "Models here continue text; they do not fill gaps."),
    "best_of": ((1,), "Set n and choose yourself."),
}


def refuse_unsupported(request: GenerationRequest) -> None:
    """Refuse fields that would change the output and are not implemented.

    Raises:
        ApiError: 400, naming the field.
    """
    for name, (neutral, instead) in UNSUPPORTED.items():
        value = getattr(request, name, None)
        if value is not None and value not in neutral:
            raise unsupported(name, instead)
    if request.stream_options is not None and not request.stream:
        raise unsupported("stream_options", "It is only for streams: set stream to true.")
