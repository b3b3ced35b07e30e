"""Mixture of experts of a device: the choice of each token's experts, and the sum of their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wisp_plan.spec.ffn import Activation
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.gemm import Matrix
from wisp_runtime.ops.protocol.weights import HeldWeight


@dataclass(frozen=True, slots=True)
class Routing:
    """Experts of each token.

    Attributes:
        experts: ``[N, K]`` int32, best first.
        weights: ``[N, K]`` float32, factors of their results.
    """

    experts: Array
    weights: Array


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Weights of a layer's experts.

    Attributes:
        gate_up: ``[E, 2 F, D]``, gate above up; ``[E, F, D]`` where the activation has no gate.
        down: ``[E, D, F]``.
        gate_up_bias, down_bias: ``[E, 2 F]`` and ``[E, D]``, or None.
        activation: function between them.
    """

    gate_up: HeldWeight
    down: HeldWeight
    gate_up_bias: Array | None = None
    down_bias: Array | None = None
    activation: Activation = "silu"


class MoeOps(Protocol):
    """Router and experts. A row of a result depends on that row of the arguments alone."""

    def expert_counts(self, layers: int, experts: int) -> Array:
        """Allocate counters of the experts' load, ``[layers, 2, E]`` int64, zeroed; see :meth:`route`."""
        ...

    def counts_on_host(self, counts: Array) -> Array:
        """Return a copy of counters in the host's memory, int64; waits for the device."""
        ...

    def route(
        self,
        x: Array,
        weight: Array,
        spec: RouterSpec,
        *,
        bias: Array | None = None,
        correction: Array | None = None,
        counts: Array | None = None,
    ) -> Routing:
        """Choose K experts for each row of ``x``; logits, scores and weights are float32.

        Args:
            x: ``[N, D]``.
            weight: ``[E, D]``; logits are ``x W^T + bias``.
            spec: scores, choice and weights.
            bias: ``[E]``, of the logits, or None.
            correction: ``[E]``, added to the scores for the choice alone, or None.
            counts: ``[2, E]`` of :meth:`expert_counts`: number of tokens sent to each expert, and of calls
                that sent it any, to which this call's are added; None: nothing is counted.
        """
        ...

    def mixture(
        self, x: Array, routing: Routing, experts: ExpertWeights, added: Array | None = None
    ) -> Array:
        """Return the sum over K of ``weights * down(activation(gate_up x))``, plus ``added``.

        Args:
            x: ``[N, D]``.
            routing: experts of each row.
            experts: their weights.
            added: ``[N, D]``, such as the shared expert's result, or None; it may be overwritten.

        Returns:
            ``[N, D]``.
        """
        ...

    def from_latent(self, x: Array, weight: Matrix, added: Array | None = None) -> Array:
        """Return ``x W^T`` plus ``added``: ``[N, latent]`` of a mixture to ``[N, D]``.

        Args:
            added: ``[N, D]``, such as the shared expert's result, or None.
        """
        ...

    def scale_rows(self, x: Array, logits: Array) -> Array:
        """Return ``x * sigmoid(logits)``: ``[N, D]`` by ``[N, 1]``, the gate of a shared expert."""
        ...
