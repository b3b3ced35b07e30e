"""Mixture of experts of a device: the choice of each token's experts, and the sum of their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wisp_plan.spec.ffn import Activation
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.gemm import Matrix
from wisp_runtime.ops.protocol.weights.storage import HeldWeight


@dataclass(frozen=True, slots=True)
class Routing:
    """Experts of each token.

    Attributes:
        experts: ``[N, K]`` int32, best first.
        weights: ``[N, K]`` float32, factors of their results.
        shared_logits: ``[N]`` float32, logits of the factor of the shared expert's result, or None: it has
            no gate.
    """

    experts: Array
    weights: Array
    shared_logits: Array | None = None


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Weights of a layer's experts.

    Attributes:
        gate_up: ``[E, 2 F, D]``, gate above up; ``[E, F, D]`` where the activation has no gate.
        down: ``[E, D, F]``.
        gate_up_bias, down_bias: ``[E, 2 F]`` and ``[E, D]``, or None.
        activation: function between them.
        shared: gate above up and down of the expert that every token passes, of the others' kind, or None.
    """

    gate_up: HeldWeight
    down: HeldWeight
    gate_up_bias: Array | None = None
    down_bias: Array | None = None
    activation: Activation = "silu"
    shared: tuple[HeldWeight, HeldWeight] | None = None


@dataclass(frozen=True, slots=True)
class ExpertResults:
    """Results of a mixture's experts that are not added up yet; another mixture overwrites them.

    Attributes:
        y: ``[N K, D]``, a row a pair of a token and an expert.
        positions: ``[N, K]`` int32, rows of ``y``.
        routing: factors of the results.
        added: ``[N, D]``, such as the shared expert's result, or None.
    """

    y: Array
    positions: Array
    routing: Routing
    added: Array | None


class MoeOps(Protocol):
    """Router and experts. A row of a result depends on that row of the arguments alone."""

    def expert_counts(self, layers: int, experts: int) -> Array:
        """Allocate counters of the experts' load, ``[layers, 2, E]`` int64, zeroed; see :meth:`route`."""
        ...

    def counts_on_host(self, counts: Array) -> Array:
        """Return a copy of counters in the host's memory, int64; waits for the device."""
        ...

    def joins_shared(self, experts: ExpertWeights, tokens: int) -> bool:
        """Return whether :meth:`mixture` multiplies the shared expert beside the others and adds its result.

        Args:
            experts: weights, with those of the shared expert.
            tokens: N.
        """
        ...

    def route(
        self,
        x: Array,
        weight: Array,
        spec: RouterSpec,
        *,
        bias: Array | None = None,
        correction: Array | None = None,
        shared_gate: Array | None = None,
        counts: Array | None = None,
        joins_shared: bool = False,
    ) -> Routing:
        """Choose K experts for each row of ``x``; logits, scores and weights are float32.

        Args:
            x: ``[N, D]``.
            weight: ``[E, D]``; logits are ``x W^T + bias``.
            spec: scores, choice and weights.
            bias: ``[E]``, of the logits, or None.
            correction: ``[E]``, added to the scores for the choice alone, or None.
            shared_gate: ``[1, D]``, of a shared expert's logit a token, or None.
            counts: ``[2, E]`` of :meth:`expert_counts`: number of tokens sent to each expert, and of calls
                that sent it any, to which this call's are added; None: nothing is counted.
            joins_shared: whether the mixture will multiply the shared expert, too: see :meth:`joins_shared`.
        """
        ...

    def mixture(
        self,
        x: Array,
        routing: Routing,
        experts: ExpertWeights,
        added: Array | None = None,
        *,
        leaves_sum: bool = False,
    ) -> Array | ExpertResults:
        """Return the sum over K of ``weights * down(activation(gate_up x))``, plus ``added``.

        Where the routing has ``shared_logits``, ``added`` is multiplied by their sigmoid.

        Args:
            x: ``[N, D]``.
            routing: experts of each row.
            experts: their weights.
            added: ``[N, D]``, such as the shared expert's result, or None; it may be overwritten.
            leaves_sum: whether a device may leave the sum to what reads it, :meth:`.Ops.add_rmsnorm` or
                :meth:`combined`.

        Returns:
            ``[N, D]``, or what is left to add up.
        """
        ...

    def from_latent(self, x: Array, weight: Matrix, added: Array | None = None) -> Array:
        """Return ``x W^T`` plus ``added``: ``[N, latent]`` of a mixture to ``[N, D]``.

        Args:
            added: ``[N, D]``, such as the shared expert's result, or None.
        """
        ...

    def combined(self, results: Array | ExpertResults) -> Array:
        """Return the sum ``[N, D]`` of what :meth:`mixture` returned."""
        ...
