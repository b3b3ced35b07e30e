"""A decode step in one launch, as layers and models see it: the weights it is given, and what runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from wisp_runtime.batch import Array, Batch

Matrix = Any  # as :mod:`.backend` says


@dataclass(frozen=True, slots=True)
class StepLayer:
    """One layer's weights, for a device that runs a whole step at once; what a model has not is None."""

    qkv: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix
    qkv_bias: Array | None
    output_bias: Array | None
    gate_up_bias: Array | None
    down_bias: Array | None
    input_norm: Array
    mlp_norm: Array
    q_norm: Array | None
    k_norm: Array | None

    def in_order(self) -> tuple[Any, ...]:
        """Return them in the order in which they are listed here."""
        return tuple(getattr(self, name) for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class StepWeights:
    """All weights of a model, as :class:`StepLayer` has those of a layer."""

    embeddings: Matrix
    head: Matrix
    norm: Array
    layers: list[StepLayer]


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
