"""Prompt budget of each step: by tokens and work, or by the targets of time.

Pure. Without targets a step has the tokens of its limits, and the work of so many at the start of a sequence:
at the end of a long context attention costs several times what the rest of the model does, so such a step has
fewer tokens and takes no longer.

With ``target_per_token_s`` a step with decodes takes as many prompt tokens as are predicted to fit the
target. With ``target_first_token_s`` a step of prompts alone takes a fraction of it, so that a request that
comes meanwhile can meet it; without a target per token, steps with decodes may be as large as others once the
first prompt in line has spent half of its time.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from wisp_runtime.engine.scheduling.plan import Chunk, Limits, Plan
from wisp_runtime.engine.scheduling.step_budget import PromptBudget
from wisp_runtime.engine.scheduling.step_time import StepTimes

FIRST_TOKEN_STEPS = 4
"""Steps of prompts alone in a target of the first token: a request waits for up to two, then has its own."""


class Pace:
    """Budgets of steps, by the limits alone or by measured times.

    Args:
        limits: bounds and targets of a step.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        has_targets = limits.target_per_token_s is not None or limits.target_first_token_s is not None
        self._times = StepTimes(limits) if has_targets else None

    def observe(self, plan: Plan, seconds: float) -> None:
        """Learn from a step that took ``seconds``."""
        if self._times is not None:
            self._times.observe(plan, seconds)

    def is_late(self, waited_s: float) -> bool:
        """Return whether a request without a token has spent half of the time to its first."""
        target_s = self._limits.target_first_token_s
        return target_s is not None and waited_s > target_s / 2

    def mixed_budget(self, decodes: Items[Chunk], *, is_late: bool) -> PromptBudget:
        """Return the budget of prompts in a step with ``decodes``.

        Args:
            is_late: whether the first prompt in line :meth:`is_late`.
        """
        limits = self._limits
        tokens = max(0, limits.max_step_tokens - len(decodes))
        if limits.target_per_token_s is not None and self._times is not None:
            return self._times.budget(tuple(decodes), tokens, limits.target_per_token_s)
        if limits.mixed_step_tokens is not None and not is_late:
            tokens = max(0, min(tokens, limits.mixed_step_tokens - len(decodes)))
        return self._by_work(tokens)

    def prompt_budget(self, *, decodes_wait: bool = False) -> PromptBudget:
        """Return the budget of a step of prompts alone.

        Args:
            decodes_wait: whether sequences that decode wait for it, in deterministic mode.
        """
        limits, times = self._limits, self._times
        tokens = limits.max_step_tokens
        if decodes_wait and limits.target_per_token_s is not None and times is not None:
            return times.budget((), tokens, limits.target_per_token_s - times.decode_s)
        if decodes_wait:
            return self._by_work(min(tokens, limits.mixed_step_tokens or tokens))
        if limits.target_first_token_s is not None and times is not None:
            return times.budget((), tokens, limits.target_first_token_s / FIRST_TOKEN_STEPS)
        return self._by_work(tokens)

    def _by_work(self, tokens: int) -> PromptBudget:
        """Return a budget of ``tokens``, and of the work that so many at the start of a sequence are."""
        context_work = self._limits.context_work
        return PromptBudget(tokens, tokens * (1.0 + context_work * tokens / 2), context_work=context_work)
