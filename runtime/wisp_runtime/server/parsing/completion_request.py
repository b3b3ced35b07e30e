"""The body of ``/v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from wisp_plan.memory.alternatives import MAX_ALTERNATIVES
from wisp_runtime.server.parsing.generation_request import MAX_CHOICES, GenerationRequest
from wisp_runtime.server.parsing.hints import foreign_fields

MAX_PROMPTS = 1024


TokenIds = Annotated[list[int], Field(min_length=1)]
Prompts = Annotated[list[str | TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
PromptField = str | TokenIds | Prompts


class CompletionRequest(GenerationRequest):
    """The body of ``POST /v1/completions``. ``prompt`` is one or several, as text or as token ids."""

    foreign = foreign_fields.COMPLETION

    prompt: list[str | list[int]]
    echo: bool | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None  # 0: the prompt is scored, nothing generated
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None

    @field_validator("prompt", mode="before", json_schema_input_type=PromptField)
    @classmethod
    def _prompts_as_list(cls, value: Any) -> Any:
        """Normalize text, texts, token ids and lists of token ids to one list."""
        prompts = [value] if isinstance(value, str) or is_token_list(value) else value
        if not isinstance(prompts, list) or not prompts:
            raise ValueError("'prompt' must be a string, a list of strings, token ids, or a list of those.")
        if len(prompts) > MAX_PROMPTS:
            raise ValueError(f"'prompt' has {len(prompts)} prompts; at most {MAX_PROMPTS} are allowed.")
        for index, prompt in enumerate(prompts):
            if not isinstance(prompt, str) and not is_token_list(prompt):
                raise ValueError(f"Prompt {index} is neither a string nor a list of token ids (integers).")
        return prompts


def is_token_list(value: Any) -> bool:
    """Return whether a field's value is token ids, at least one."""
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)
