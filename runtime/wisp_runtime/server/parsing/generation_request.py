"""Fields that ``/v1/chat/completions`` and ``/v1/completions`` share.

Fields that cannot change the output (``user``, ``metadata``, …) are accepted and ignored; unsupported fields
that would are refused by name (:mod:`.refusals`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from wisp_plan.families.generation import MAX_REPETITION, MIN_REPETITION
from wisp_plan.memory.alternatives import MAX_ALTERNATIVES
from wisp_runtime.server.answers.repetition import RepetitionRule
from wisp_runtime.server.api.errors import unsupported
from wisp_runtime.server.parsing.refusals import without_refused
from wisp_runtime.server.parsing.strict_model import StrictModel
from wisp_runtime.server.structured.fields import StructuredFields

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 64
MAX_SALT_CHARS = 256
MAX_SEED = (1 << 64) - 1
MIN_SEED = -(1 << 63)
MAX_CHOICES = 128
MAX_PATTERN_TOKENS = 256
MIN_REPETITIONS, MAX_REPETITIONS = 2, 1024
MAX_BAD_WORDS = 64
MAX_ALLOWED = 1 << 18  # ids of the largest vocabulary that the sampler takes
MAX_BIASES = 1024  # a GPU holds 4,096 biases and penalties a sequence (engine/execution/sampler.py)
REQUEST_ID = r"^[A-Za-z0-9._:-]{1,96}$"

Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
TokenId = Annotated[int, Field(ge=0)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
# What the fields may be before they are checked, for the OpenAPI document.
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
StopField = StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)]
BiasField = Annotated[dict[str, Bias], Field(max_length=MAX_BIASES)]


class StreamOptions(StrictModel):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # extension: counts so far in each chunk
    include_obfuscation: bool | None = None  # accepted: padding against eavesdroppers, which we never add


class PromptCacheOptions(StrictModel):
    """Wishes for the cache of prompts, which keeps prefixes without them; none changes an answer."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None

    @model_validator(mode="after")
    def _answers(self) -> PromptCacheOptions:
        """Refuse what changes the response.

        Raises:
            ApiError: 400, naming the option.
        """
        if self.prewarm:
            raise unsupported(
                "prompt_cache_options.prewarm", "Every request is answered; one token of it is the shortest."
            )
        if self.comparison_response_id is not None:
            raise unsupported(
                "prompt_cache_options.comparison_response_id", "usage has the number of cached tokens."
            )
        return self


class RepetitionDetection(StrictModel):
    """Repetition that ends an answer; see :class:`.RepetitionRule`."""

    max_pattern_size: Annotated[int, Field(ge=0, le=MAX_PATTERN_TOKENS)] = 0  # 0: none ends it
    min_pattern_size: Annotated[int, Field(ge=0)] = 0
    min_count: Annotated[int, Field(ge=0, le=MAX_REPETITIONS)] = 0

    @model_validator(mode="after")
    def _is_possible(self) -> RepetitionDetection:
        if self.min_pattern_size > self.max_pattern_size:
            raise ValueError("'min_pattern_size' must be at most 'max_pattern_size'.")
        if self.max_pattern_size and self.min_count < MIN_REPETITIONS:
            raise ValueError(f"'min_count' must be at least {MIN_REPETITIONS}.")
        return self

    def rule(self) -> RepetitionRule | None:
        """Return the repetition that ends an answer; None: none does."""
        if not self.max_pattern_size:
            return None
        return RepetitionRule(max(1, self.min_pattern_size), self.max_pattern_size, self.min_count)


class GenerationRequest(StructuredFields):
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
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED)] | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: Annotated[str, Field(pattern=REQUEST_ID)] | None = None
    repetition_detection: RepetitionDetection | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    # Accepted and ignored: they cannot change the output.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    session_id: str | None = None
    cache_prompt: bool | None = None
    id_slot: int | None = None
    spaces_between_special_tokens: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_refused(cls, value: Any) -> Any:
        return without_refused(value, cls.model_fields) if isinstance(value, dict) else value

    @field_validator("stop", mode="before", json_schema_input_type=StopField | None)
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

    @field_validator("logit_bias", mode="before", json_schema_input_type=BiasField | None)
    @classmethod
    def _few_biases(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_BIASES:
            raise ValueError(f"'logit_bias' names {len(value)} tokens; at most {MAX_BIASES} are allowed.")
        return value
