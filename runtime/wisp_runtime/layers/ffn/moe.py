"""Mixture of experts: router, experts, some in a latent space, a shared expert with or without a gate."""

from __future__ import annotations

from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Array
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.ffn.dense import DenseMLP
from wisp_runtime.layers.linear import Linear
from wisp_runtime.ops.protocol.moe import ExpertWeights


class MixtureOfExperts:
    """``sum over the chosen of weight * expert(x)``, plus the shared expert of every token.

    Args:
        context: position of the layer, and its weights.
        spec: router, and sizes of the experts.
    """

    def __init__(self, context: LayerContext, spec: MoeSpec) -> None:
        weights, prefix = context.weights, context.prefix
        self._ops, self._spec = context.ops, spec
        self._counts = context.expert_counts
        self._router = weights[f"{prefix}.router.weight"]
        self._biases = {name: weights.get(f"{prefix}.router.{name}") for name in ("bias", "correction")}
        self._experts = ExpertWeights(
            weights[f"{prefix}.experts.gate_up.weight"],
            weights[f"{prefix}.experts.down.weight"],
            weights.get(f"{prefix}.experts.gate_up.bias"),
            weights.get(f"{prefix}.experts.down.bias"),
            spec.activation,
        )
        self._latent: Linear | None = None
        if spec.latent is not None:
            self._latent = Linear(context.ops, weights, f"{prefix}.into_latent")
            self._from_latent = weights[f"{prefix}.from_latent.weight"]
        self._shared = None if spec.shared is None else DenseMLP(context, spec.shared, "shared")
        self._shared_gate = weights[f"{prefix}.shared_gate.weight"] if spec.has_shared_gate else None

    def __call__(self, x: Array) -> Array:
        """Map ``[N, D]`` to ``[N, D]``."""
        routing = self._ops.route(x, self._router, self._spec.router, counts=self._counts, **self._biases)
        if self._latent is None:
            return self._ops.mixture(x, routing, self._experts, self._of_shared(x))
        mixed = self._ops.mixture(self._latent(x), routing, self._experts, None)
        return self._ops.from_latent(mixed, self._from_latent, self._of_shared(x))

    def _of_shared(self, x: Array) -> Array | None:
        if self._shared is None:
            return None
        added = self._shared(x)
        if self._shared_gate is None:
            return added
        return self._ops.scale_rows(added, self._ops.logits(x, self._shared_gate))
