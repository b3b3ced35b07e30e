"""Persistent decode kernel, as layers and models see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from wisp_runtime.batch import Array, Batch


class WholeStep(Protocol):
    """Runs the decode steps of one model in one launch each.

    Attributes:
        max_sequences: of a step.
        max_context_tokens: of all its sequences together.
    """

    max_sequences: int
    max_context_tokens: int

    def takes(self, batch: Batch) -> bool:
        """Return whether ``batch`` is such a step: one token a sequence, all logits wanted, not too much."""
        ...

    def traced(self, run: Callable[[], object]) -> Array:
        """Return the clocks that thread blocks leave during the step that ``run`` launches, on the host."""
        ...

    def __call__(self, batch: Batch, keys: Array, values: Array) -> Array:
        """Write K and V of B tokens to the cache ``[L, P, Hkv, Tb, Dh]``; return ``[B, V]`` logits."""
        ...
