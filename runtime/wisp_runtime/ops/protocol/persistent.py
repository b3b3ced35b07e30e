"""Persistent decode kernel, as layers and models see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from wisp_runtime.batch import Array, Batch


class PersistentKernel(Protocol):
    """The decode steps of one model, a launch each.

    Attributes:
        max_sequences: limit of sequences in a step.
        faster_up_to: sequences of a step up to which it is faster than the general path; 0: never timed, or
            slower.
        max_context_tokens: limit of their tokens together.
    """

    max_sequences: int
    faster_up_to: int
    max_context_tokens: int

    def takes(self, batch: Batch) -> bool:
        """Return whether ``batch`` is a decode step within both limits."""
        ...

    def count_experts(self, counts: Array) -> None:
        """Count the experts' load from now on, of a mixture of experts.

        Args:
            counts: counters of all layers, :meth:`.protocol.moe.MoeOps.expert_counts`.
        """
        ...

    def traced(self, run: Callable[[], object]) -> Array:
        """Return the clocks that thread blocks record during the step that ``run`` launches, on the host."""
        ...

    def __call__(
        self,
        batch: Batch,
        groups: Sequence[tuple[Array, ...]],
        states: tuple[Array, ...] = (),
        layers: int | None = None,
    ) -> Array:
        """Write K and V of B tokens to the cache; return ``[B, V]`` logits.

        Args:
            groups: keys and values of each paged group, ``[L, P, Hkv, Tb, Dh]``.
            states: recurrent states of all layers that have one, ``[slots, L, …]``; updated in place.
            layers: number of the first layers that run; None: all.
        """
        ...
