"""Step times, learned from measured ones, so that a step takes as many prompt tokens as a target allows.

Pure: times come in as numbers. The time of a step that computes prompts is fitted by

    a + b N + c A + d K        N tokens, A (token, token before it) pairs of prompts, K tokens of decodes'
    contexts

by least squares over past steps, older ones weighing less, and with a weak prior, so that it is determined
from the first step on. A step that stalls counts for a few times its prediction at most. A margin covers the
scatter: it rises with each step that takes longer than predicted, and falls slowly.
"""

from __future__ import annotations

from collections.abc import Iterable

from wisp_runtime.batch import StepKind
from wisp_runtime.engine.scheduling.plan import Chunk, Limits, Plan
from wisp_runtime.engine.scheduling.step_budget import PromptBudget

FIRST_TOKENS = 64
"""Tokens of the first step with a target; each may have twice the tokens of the largest one measured."""
DECODE_STEP_TOKENS = 8
"""Tokens whose computing is taken for as long as a decode step, before any prompt was measured: few."""
_MEMORY, _PRIOR_WEIGHT, _DECODE_WEIGHT = 0.99, 0.02, 0.1
_SCALES = (1.0, 64.0, 64.0 * 1024, 4096.0)  # typical features
_MAX_MARGIN, _MARGIN_RISE, _MARGIN_FALL = 0.5, 0.3, 0.99
_MAX_SURPRISE = 4.0
"""Longest time that is learned from one step, in predicted ones: a stall is none of the model."""

Features = tuple[float, float, float, float]


class StepTimes:
    """Learned times of steps.

    Args:
        limits: bounds and targets of a step.

    Attributes:
        decode_s: time of a step that only decodes; 0 before there was one.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._prior: list[float] | None = None
        self._weights = [0.0] * 4
        self._products = [[0.0] * 4 for _ in range(4)]  # sum of x xᵀ
        self._moments = [0.0] * 4  # sum of x y
        self._margin = 0.0
        self._max_tokens = FIRST_TOKENS // 2
        self.decode_s = 0.0

    def observe(self, plan: Plan, seconds: float) -> None:
        """Learn from a step of ``plan`` that took ``seconds``."""
        has_prefill = any(chunk.kind is not StepKind.DECODE for chunk in plan)
        if not has_prefill:
            self.decode_s += (_DECODE_WEIGHT if self.decode_s else 1.0) * (seconds - self.decode_s)
            return
        features = features_of(plan)
        if self._prior is None:
            self._begin(self.decode_s, self.decode_s / DECODE_STEP_TOKENS or seconds / features[1])
        else:
            predicted = self._predict(features)
            excess = min(seconds / predicted - 1.0, _MAX_MARGIN) if predicted > 0 else 0.0
            seconds = min(seconds, _MAX_SURPRISE * predicted) if predicted > 0 else seconds
            if excess > self._margin:
                self._margin += _MARGIN_RISE * (excess - self._margin)
            else:
                self._margin *= _MARGIN_FALL
        self._max_tokens = max(self._max_tokens, int(features[1]))
        self._lower_prior(seconds, seconds / features[1])
        self._fit(features, seconds)

    def budget(self, decodes: Plan, tokens: int, target_s: float) -> PromptBudget:
        """Return the budget of prompts beside ``decodes`` for a step of ``target_s``.

        Args:
            decodes: chunks that the step computes anyway.
            tokens: prompt tokens of the step, at most.
        """
        tokens = min(tokens, 2 * self._max_tokens)
        if self._prior is None and not self.decode_s:
            return PromptBudget(tokens, context_work=self._limits.context_work)
        if self._prior is None:
            self._begin(self.decode_s, self.decode_s / DECODE_STEP_TOKENS)
        _, count, _, contexts = features_of(decodes)
        _, token_s, pair_s, _ = self._weights
        left_s = target_s / (1.0 + self._margin) - self._predict((1.0, count, 0.0, contexts))
        return PromptBudget(tokens, max(0.0, left_s), max(0.0, token_s), max(0.0, pair_s))

    def _begin(self, fixed_s: float, token_s: float) -> None:
        self._prior = [fixed_s, token_s, token_s * self._limits.context_work, 0.0]
        self._weights = list(self._prior)

    def _lower_prior(self, fixed_s: float, token_s: float) -> None:
        """Bound the prior by a step's time, and its time per token: the first step may have stalled."""
        assert self._prior is not None
        token_s = min(token_s, self._prior[1])
        self._prior = [min(fixed_s, self._prior[0]), token_s, token_s * self._limits.context_work, 0.0]

    def _predict(self, features: Features) -> float:
        return sum(max(0.0, weight) * value for weight, value in zip(self._weights, features, strict=True))

    def _fit(self, features: Features, seconds: float) -> None:
        """Add a step to the sums, and solve for the weights; all in units of :data:`_SCALES`."""
        assert self._prior is not None
        scaled = [value / scale for value, scale in zip(features, _SCALES, strict=True)]
        for row, value in enumerate(scaled):
            self._moments[row] = _MEMORY * self._moments[row] + value * seconds
            for column, other in enumerate(scaled):
                self._products[row][column] = _MEMORY * self._products[row][column] + value * other
        matrix = [[*row, moment] for row, moment in zip(self._products, self._moments, strict=True)]
        for index, (prior, scale) in enumerate(zip(self._prior, _SCALES, strict=True)):
            matrix[index][index] += _PRIOR_WEIGHT
            matrix[index][4] += _PRIOR_WEIGHT * prior * scale
        self._weights = [value / scale for value, scale in zip(solve(matrix), _SCALES, strict=True)]


def features_of(plan: Iterable[Chunk]) -> Features:
    """Return 1, tokens, pairs of a prompt's tokens, and tokens of the contexts of decodes."""
    tokens = pairs = contexts = 0.0
    for chunk in plan:
        tokens += chunk.tokens
        if chunk.kind is StepKind.DECODE:
            contexts += chunk.start + 1
        else:
            pairs += chunk.tokens * (chunk.start + chunk.tokens / 2)
    return 1.0, tokens, pairs, contexts


def solve(matrix: list[list[float]]) -> list[float]:
    """Solve a positive definite system, ``[n, n + 1]`` with the right-hand side last; overwrites
    ``matrix``."""
    size = len(matrix)
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = matrix[row][pivot] / matrix[pivot][pivot]
            for column in range(pivot, size + 1):
                matrix[row][column] -= factor * matrix[pivot][column]
    solution = [0.0] * size
    for row in reversed(range(size)):
        known = sum(matrix[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (matrix[row][size] - known) / matrix[row][row]
    return solution
