"""Activation-aware scales: columns that meet large activations are widened before they are rounded.

A weight's column is multiplied by s and its input divided by it, in the norm or the projection that makes
the input. s is the mean magnitude of the input to a power alpha, the one of a grid that loses least of the
layer's output. Source: Lin et al. 2023, "AWQ", arXiv:2306.00978, section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from wisp_runtime.batch import Array

ALPHAS = tuple(step / 10 for step in range(10))
MAX_TOKENS = 512
MAX_ROWS = 1024
"""Tokens, and rows of each weight, by which alphas are compared: evenly spread over all."""

RoundAll = Callable[[Sequence[Array]], list[Array]]
"""Rounding of weights that are computed together: ``[N, K]`` each to the values that are stored for them."""


@dataclass(frozen=True, slots=True)
class Search:
    """Result of a search.

    Attributes:
        scales: s of each column ``[K]``, float32; all 1 where nothing is gained.
        alpha: the power.
        loss, plain_loss: squared error of the outputs with s, and with 1.
    """

    scales: Array
    alpha: float
    loss: float
    plain_loss: float


def search(
    inputs: Array,
    weights: Sequence[Array],
    round_all: RoundAll,
    executor: Executor,
    share: Callable[[Array], Array] = lambda scales: scales,
) -> Search:
    """Find the scales of weights that are computed from the same input.

    Args:
        inputs: ``[N, K]`` float32.
        weights: some rows ``[R, K]`` of each weight.
        round_all: rounding of the weights.
        executor: threads that try an alpha each.
        share: function that makes columns alike whose scales are one (heads that share values).
    """
    magnitudes = np.abs(inputs).mean(axis=0, dtype=np.float64)
    tokens = inputs[:: max(1, len(inputs) // MAX_TOKENS)][:MAX_TOKENS]
    candidates = [share(_scales(magnitudes, alpha)) for alpha in ALPHAS]
    losses = list(executor.map(lambda scales: _loss(tokens, weights, round_all, scales), candidates))
    best = int(np.argmin(losses))
    return Search(candidates[best], ALPHAS[best], losses[best], losses[0])


def _scales(magnitudes: Array, alpha: float) -> Array:
    """Return powers of the magnitudes, about 1 in the middle of their range."""
    powers = np.maximum(magnitudes, 1e-4 * magnitudes.max() + 1e-30) ** alpha
    return (powers / np.sqrt(powers.max() * powers.min())).astype(np.float32)


def _loss(tokens: Array, weights: Sequence[Array], round_all: RoundAll, scales: Array) -> float:
    """Return the squared error of the outputs of ``tokens`` after rounding with ``scales``."""
    total = 0.0
    for weight, rounded in zip(weights, round_all([weight * scales for weight in weights]), strict=True):
        errors = tokens @ (rounded / scales - weight).T
        total += float(np.square(errors, out=errors).sum(dtype=np.float64))
    return total


def sampled_rows(rows: int) -> range:
    """Return which of a weight's rows are compared."""
    return range(0, rows, max(1, rows // MAX_ROWS))[:MAX_ROWS]


def shared_by_heads(heads: int, kv_heads: int, head_size: int) -> Callable[[Array], Array]:
    """Return the function that makes scales of query heads' outputs alike where they share a value head."""

    def share(scales: Array) -> Array:
        grouped = np.log(scales).reshape(kv_heads, heads // kv_heads, head_size)
        mean = np.exp(grouped.mean(axis=1, keepdims=True))
        return np.broadcast_to(mean, grouped.shape).reshape(-1).astype(np.float32)

    return share
