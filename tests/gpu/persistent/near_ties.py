"""Choices of experts at near-ties: the general path, made to choose as another path may have.

Two paths round a router's input at different places, so that either may choose an expert that is hardly
better than the next. A row of the other path is right if the general path gives it with some choice that
near-ties leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from wisp_plan.spec.moe import RouterSpec

MIN_MARGIN = 0.03
"""Deviations of a row's logits by which an expert is clearly better than the next."""

MAX_CHOICES = 4
"""Choices of a row that are tried in a layer."""


def choices_of(logits: np.ndarray, chosen: int) -> list[list[int]]:
    """Return the sets of ``chosen`` experts that near-ties of a row leave, the best first."""
    order = [int(expert) for expert in np.argsort(-logits, kind="stable")]
    last, following = logits[order[chosen - 1]], logits[order[chosen]]
    margin = MIN_MARGIN * logits.std()
    better = [expert for expert in order[max(0, chosen - 3) : chosen] if logits[expert] - following <= margin]
    worse = [expert for expert in order[chosen : chosen + 3] if last - logits[expert] <= margin]
    clear, some = order[: chosen - len(better)], combinations([*better, *worse], len(better))
    sets = sorted(some, key=lambda tied: -sum(logits[expert] for expert in tied))
    return [clear + list(tied) for tied in sets[:MAX_CHOICES]]


@contextmanager
def choosing(ops: Any, ranks: Iterable[int]) -> Iterator[None]:
    """Have the layers of ``ops``' general path take the choices of these ranks, as many as a row has."""
    of_layer, route = iter(ranks), ops.route

    def choose(x: Any, weight: Any, spec: RouterSpec, **options: Any) -> Any:
        assert (spec.scores, spec.normalizes, spec.groups) == ("softmax", True, 1)
        rank, routing, bias = next(of_layer), route(x, weight, spec, **options), options.get("bias")
        if not rank:
            return routing
        logits = ops.to_host(x).astype(np.float64) @ ops.to_host(weight).astype(np.float64).T
        logits += 0 if bias is None else ops.to_host(bias).astype(np.float64)
        found = [choices_of(row, spec.chosen) for row in logits]
        experts = np.array([choices[rank % len(choices)] for choices in found], np.int32)
        shares = np.exp(np.take_along_axis(logits, experts, axis=1) - logits.max(axis=1, keepdims=True))
        weights = (spec.scale * shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
        made = map(ops.from_host, (experts, weights))
        return replace(routing, **dict(zip(("experts", "weights"), made, strict=True)))

    ops.route, ops.joins_shared = choose, lambda *_: False  # a shared expert is sorted with the others
    try:
        yield
    finally:
        del ops.route, ops.joins_shared


def nearest(
    ops: Any,
    general: Callable[[], np.ndarray],
    got: np.ndarray,
    compare: Callable[[np.ndarray, np.ndarray], np.ndarray],
    *,
    enough: float,
    layers: int = 1,
    clear_layers: int = 0,
) -> np.ndarray:
    """Return how near each row of ``got`` is to the general path's with one of its choices, at best.

    Args:
        ops: operations that ``general`` runs by.
        general: computes the rows of ``got`` by the general path.
        compare: returns the nearness of each row of two arrays.
        enough: nearness of all rows at which no more choices are tried.
        layers: layers of experts whose choice matters.
        clear_layers: layers of experts before them that add nothing.
    """
    best = compare(got, general())
    for ranks in np.ndindex((MAX_CHOICES,) * layers):
        if (best >= enough).all():
            break
        if not any(ranks):
            continue
        with choosing(ops, (0,) * clear_layers + ranks):
            best = np.fmax(best, compare(got, general()))
    return best
