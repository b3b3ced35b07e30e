"""Mixture of experts in NumPy: router, and the sum over the chosen experts.

Sources: Shazeer et al. 2017, arXiv:1701.06538 (top-k softmax); DeepSeek-V3, arXiv:2412.19437 eq. 12 to 16
(sigmoid scores, correction bias), and its code (groups).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wisp_plan.spec.moe import RouterSpec, Scores
from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError

_MIN_SUM = np.float32(1e-20)
_EXP_MAX = np.float32(88.0)

Expert = Callable[[int, Array], Array]
"""``expert(e, x)``: result of expert e, ``[R, D]`` to ``[R, D]``."""


def choose_experts(logits: Array, spec: RouterSpec, correction: Array | None = None) -> tuple[Array, Array]:
    """Return each token's experts ``[N, K]`` int32, best first, and their weights ``[N, K]`` float32.

    Of equal scores the lower index wins. Softmax scores ascend with the logits, which then decide.

    Args:
        logits: ``[N, E]`` float32, with the router's bias.
        spec: scores, choice and weights.
        correction: ``[E]``, added to the scores for the choice alone, or None.

    Raises:
        ShapeError: scores of a name that is not in ``_SCORES``.
    """
    if spec.scores not in _SCORES:
        raise ShapeError(f"route: scores are {spec.scores!r}, must be one of {', '.join(_SCORES)}")
    score, weigh = _SCORES[spec.scores]
    has_own_order = spec.scores == "softmax" and correction is None and spec.groups == 1
    ranked = logits if has_own_order else score(logits)
    if correction is not None:
        ranked = ranked + correction
    if spec.chosen_groups < spec.groups:
        ranked = _within_groups(ranked, spec)
    experts = _best(ranked, spec.chosen)
    weights = weigh(logits, experts, spec)
    return experts.astype(np.int32), weights * np.float32(spec.scale)


def mixture(
    x: Array,
    experts: Array,
    weights: Array,
    expert: Expert,
    added: Array | None = None,
    *,
    max_rows: int | None = None,
) -> Array:
    """Return ``added`` plus the weighted sum of each row's experts, added in the order of their indices.

    Args:
        x: ``[N, D]`` float32.
        experts, weights: ``[N, K]`` of :func:`choose_experts`.
        expert: an expert's function.
        added: ``[N, D]``, or None; it is overwritten.
        max_rows: rows of an expert that are computed at once; None: all.
    """
    out = np.zeros_like(x) if added is None else added
    for index in np.unique(experts).tolist():
        chosen, places = np.nonzero(experts == index)
        step = max_rows or len(chosen)
        for first in range(0, len(chosen), step):
            rows, place = chosen[first : first + step], places[first : first + step]
            out[rows] += weights[rows, place, None] * expert(index, x[rows])
    return out


def scale_rows(x: Array, logits: Array) -> Array:
    """Return ``x * sigmoid(logits)``: ``[N, D]`` by ``[N, 1]``."""
    scaled: Array = x * _sigmoid(logits)
    return scaled


def _sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``, exact to a relative error: scores near 0 are compared, too."""
    return np.float32(1) / (np.float32(1) + np.exp(np.minimum(-x, _EXP_MAX)))


def _softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return shares


def _sigmoid_weights(logits: Array, experts: Array, spec: RouterSpec) -> Array:
    weights = _sigmoid(np.take_along_axis(logits, experts, axis=1))
    return weights / (weights.sum(axis=1, keepdims=True) + _MIN_SUM) if spec.normalizes else weights


def _softmax_weights(logits: Array, experts: Array, spec: RouterSpec) -> Array:
    if spec.normalizes:
        return _softmax(np.take_along_axis(logits, experts, axis=1))
    weights: Array = np.take_along_axis(_softmax(logits), experts, axis=1)
    return weights


_Score = Callable[[Array], Array]
_Weigh = Callable[[Array, Array, RouterSpec], Array]
_SCORES: dict[Scores, tuple[_Score, _Weigh]] = {
    "softmax": (_softmax, _softmax_weights),
    "sigmoid": (_sigmoid, _sigmoid_weights),
}


def _best(scores: Array, count: int) -> Array:
    """Return the indices of the ``count`` largest of each row, the largest first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def _within_groups(scores: Array, spec: RouterSpec) -> Array:
    """Return the scores, those of groups that are not chosen minus infinity."""
    by_group = scores.reshape(len(scores), spec.groups, spec.experts // spec.groups)
    sums = np.sort(by_group, axis=2)[:, :, -2:].sum(axis=2)
    is_chosen = np.zeros(sums.shape, bool)
    np.put_along_axis(is_chosen, _best(sums, spec.chosen_groups), True, axis=1)
    return np.where(is_chosen[:, :, None], by_group, np.float32(-np.inf)).reshape(scores.shape)
