"""Translate a request's fields on reasoning: names for the chat template, and a budget of thinking tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wisp_runtime.server.answers.reasoning import AUTO, ReasoningFormat, format_of
from wisp_runtime.server.api.errors import unsupported
from wisp_runtime.server.text.marker_tokens import MarkerTokens, marker_tokens
from wisp_runtime.server.text.template_messages import ChatTemplate
from wisp_runtime.server.text.tokenizer import ModelTokenizer

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

EFFORT_NAME = "reasoning_effort"
BUDGET_NAME = "thinking_budget"  # Seed-OSS
SWITCHES = ("enable_thinking", "thinking")  # Qwen3, GLM, SmolLM3, Gemma 4; Granite 3.3, DeepSeek-V3.1
HISTORY_FIELDS = ("reasoning", "thinking")  # Gemma 4; gpt-oss
BUDGETS: Mapping[Effort, int | None] = {
    "none": 0,
    "minimal": 256,
    "low": 1024,
    "medium": 4096,
    "high": None,
    "xhigh": None,
    "max": None,
}
"""Thinking tokens by effort, where the template knows no efforts; None is unlimited."""


@dataclass(frozen=True, slots=True)
class ReasoningSupport:
    """Ways in which a model and its chat template let thinking be seen and steered.

    Attributes:
        format: markers of its thinking; None if it has none that are known.
        switches: names with which the template turns thinking on and off.
        reads_effort: whether the template reads ``reasoning_effort``.
        reads_budget: whether it reads a budget of thinking tokens.
        history_fields: fields of former messages in which it reads thinking, besides ``reasoning_content``.
        openings, closings: tokens of the markers.
    """

    format: ReasoningFormat | None = None
    switches: tuple[str, ...] = ()
    reads_effort: bool = False
    reads_budget: bool = False
    history_fields: tuple[str, ...] = ()
    openings: MarkerTokens = ()
    closings: MarkerTokens = ()

    @classmethod
    def of(
        cls, template: ChatTemplate | None, tokenizer: ModelTokenizer | None = None, wanted: str = AUTO
    ) -> ReasoningSupport:
        """Return what a template shows.

        Args:
            template: the model's; None for a base model.
            tokenizer: the model's; without it the markers' tokens are not known.
            wanted: name of a format, ``auto`` or ``none``.

        Raises:
            ConfigError: no format has that name.
        """
        format = format_of(template.source if template is not None else None, wanted)
        if template is None:
            return cls(format)
        markers = (format.opening, format.closing) if format is not None and tokenizer is not None else ()
        return cls(
            format,
            tuple(name for name in SWITCHES if template.reads(name)),
            template.reads(EFFORT_NAME),
            template.reads(BUDGET_NAME),
            tuple(name for name in HISTORY_FIELDS if template.reads_field(name)),
            *(marker_tokens(tokenizer, marker) for marker in markers if tokenizer is not None),
        )


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Wishes of a request on reasoning, as the template and the engine take them.

    Attributes:
        names: names for the template, those of the request included.
        budget_tokens: thinking tokens after which the closing marker is forced; None: no limit.
    """

    names: dict[str, Any]
    budget_tokens: int | None = None


def reasoning_of(
    effort: Effort | None, budget_tokens: int | None, names: Mapping[str, Any], support: ReasoningSupport
) -> Reasoning:
    """Return the names and the budget with which a model reasons as a request asks.

    An effort goes to a template that reads ``reasoning_effort``; where the model knows only some, as the
    nearest of them, and ``none`` is a budget of 0 too. Else ``none`` turns thinking off by the template's
    switch, and the others turn it on and set a budget; without a switch ``none`` is a budget of 0.
    A name that the request sets itself stays.

    Args:
        effort: ``reasoning_effort``; None leaves it to the model.
        budget_tokens: ``thinking_token_budget``; None or -1 is unlimited.
        names: ``chat_template_kwargs``.
        support: ways of the model.

    Raises:
        ApiError: 400; the model does not think.
    """
    budget = None if budget_tokens == -1 else budget_tokens
    if support.format is None and budget is not None:
        raise unsupported(
            "thinking_token_budget",
            "The model's template shows no thinking that could be ended: leave it out.",
        )
    if support.format is None and not support.reads_effort and effort not in (None, "none"):
        raise unsupported(
            EFFORT_NAME, "The model's template shows no thinking: leave it out, or send 'none'."
        )
    known = support.format.efforts if support.format is not None else ()
    chosen: dict[str, Any] = {EFFORT_NAME: _nearest(effort, known)} if effort and support.reads_effort else {}
    if effort == "none" and known and budget is None:
        budget = 0
    if effort or budget:
        chosen |= dict.fromkeys(support.switches, effort != "none")
    if effort and budget is None and support.format is not None and not support.reads_effort:
        budget = None if effort == "none" and support.switches else BUDGETS[effort]
    if budget is not None and support.reads_budget:
        chosen[BUDGET_NAME] = budget
    return Reasoning(chosen | dict(names), budget)


def _nearest(effort: Effort, known: Sequence[str]) -> str:
    """Return an effort as the nearest of ``known``, the least first; itself if all are known."""
    if not known or effort in known:
        return effort
    order = list(BUDGETS)
    return known[0] if order.index(effort) < order.index(known[0]) else known[-1]  # type: ignore[arg-type]
