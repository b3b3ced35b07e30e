"""Truncation of prompts: ``truncate_prompt_tokens`` and ``truncation_side``."""

from __future__ import annotations

from dataclasses import dataclass

from wisp_runtime.server.api.errors import bad_request, unsupported
from wisp_runtime.server.parsing.generation_request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Truncation:
    """Tokens of a prompt that are kept.

    Attributes:
        tokens: number of tokens, at most.
        keeps_end: whether the last ones are kept, not the first.
    """

    tokens: int
    keeps_end: bool = True

    def of(self, tokens: list[int]) -> list[int]:
        """Return the tokens of ``tokens`` that are kept."""
        return tokens[-self.tokens :] if self.keeps_end else tokens[: self.tokens]


def truncation_of(request: GenerationRequest, max_context: int, max_tokens: int | None) -> Truncation | None:
    """Return the truncation that ``request`` asks for, or None.

    ``truncate_prompt_tokens: -1`` keeps as many tokens as fit beside the answer.

    Args:
        max_context: tokens of prompt and answer together, at most.
        max_tokens: tokens of the answer; None: at least one.

    Raises:
        ApiError: a field contradicts another, or keeps nothing.
    """
    kept = request.truncate_prompt_tokens
    if kept is None:
        if request.truncation_side is not None:
            raise unsupported("truncation_side", "It is for truncate_prompt_tokens: set that too.")
        return None
    if kept == -1:
        kept = max(max_context - (max_tokens or 1), 1)
    if kept == 0:
        raise bad_request(
            "'truncate_prompt_tokens' is 0, which leaves no prompt: keep at least 1, or send -1 for as many "
            "as fit.",
            "truncate_prompt_tokens",
            "invalid_value",
        )
    return Truncation(kept, request.truncation_side != "right")
