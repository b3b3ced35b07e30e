"""Usage of a finished answer: its tokens and its times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """Tokens and times of one request's answer.

    Attributes:
        prompt_tokens, cached_tokens: tokens of its prompts, and those of them found in the prefix cache.
        completion_tokens: tokens generated, of all choices.
        finish: reason of the end, as the pod calls it.
        first_token_s: time from the request's arrival at the gateway to the first token, if there was one.
        per_token_s: mean time of each further token, if there were any.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish: str
    first_token_s: float | None
    per_token_s: float | None
