"""Experts chosen on both sides: transformers computes with ours, and its scores judge them.

Of nearly equal scores rounding decides, and from there on two models differ. So the reference takes our
choice, by a ``torch.topk`` that returns it; its own scores of the experts say how far that is from the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def experts_of(routes: Sequence[np.ndarray] | None) -> Iterator[list[Any]]:
    """Choose the experts of ``routes``, ``[S, K]`` for each mixture in order; yield the scores of all.

    Scores ``[S, E]`` are those that the model chooses by, corrected. Without routes the model chooses itself.
    """
    scores: list[Any] = []
    if not routes:
        yield scores
        return
    topk, method = torch.topk, torch.Tensor.topk  # Granite's router calls the method

    def ours(values: Any, k: int, dim: int = -1, **named: Any) -> Any:
        if len(scores) == len(routes) or values.shape[:-1] != routes[len(scores)].shape[:-1]:
            return topk(values, k, dim=dim, **named)
        route = routes[len(scores)]
        if k != route.shape[-1] or values.shape[-1] <= route.max():
            return topk(values, k, dim=dim, **named)
        indices = torch.as_tensor(route.astype(np.int64), device=values.device)
        scores.append(values.float().clone())
        return values.gather(-1, indices), indices

    torch.topk = torch.Tensor.topk = ours
    try:
        yield scores
    finally:
        torch.topk, torch.Tensor.topk = topk, method
    assert len(scores) == len(routes), f"{len(scores)} of {len(routes)} routers chose by torch.topk"


def gaps(scores: Any, route: np.ndarray) -> Any:
    """Return how far the lowest chosen score is below the K-th best, ``[S]``; at least 0."""
    chosen = scores.gather(-1, torch.as_tensor(route.astype(np.int64), device=scores.device))
    best = torch.sort(scores, dim=-1, descending=True).values[:, : route.shape[-1]]
    return (best.min(dim=-1).values - chosen.min(dim=-1).values).clamp_min(0)


class Recorder:
    """Records the experts that our router chooses, in the calls inside its block.

    Args:
        ops: the device.

    Attributes:
        routes: ``[N, K]`` on the host, of each call in order.
    """

    def __init__(self, ops: Any) -> None:
        self._ops, self.routes = ops, list[np.ndarray]()

    def __enter__(self) -> Recorder:
        route = self._ops.route

        def recording(*arguments: Any, **named: Any) -> Any:
            routing = route(*arguments, **named)
            self.routes.append(np.array(self._ops.to_host(routing.experts)).astype(np.int32))
            return routing

        self._ops.route = recording
        return self

    def __exit__(self, *_raised: object) -> None:
        del self._ops.route
