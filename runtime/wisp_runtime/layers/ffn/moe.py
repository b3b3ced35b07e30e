"""Mixture of experts: router, experts, some in a latent space, a shared expert with or without a gate."""

from __future__ import annotations

from typing import Any

from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Array
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.ffn.dense import DenseMLP
from wisp_runtime.layers.linear import Linear
from wisp_runtime.ops.protocol.moe import ExpertResults, ExpertWeights
from wisp_runtime.ops.protocol.weights.storage import HeldWeight


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
        self._optional: dict[str, Any] = {
            "bias": weights.get(f"{prefix}.router.bias"),
            "correction": weights.get(f"{prefix}.router.correction"),
            "shared_gate": weights[f"{prefix}.shared_gate.weight"] if spec.has_shared_gate else None,
        }
        self._experts = ExpertWeights(
            weights[f"{prefix}.experts.gate_up.weight"],
            weights[f"{prefix}.experts.down.weight"],
            weights.get(f"{prefix}.experts.gate_up.bias"),
            weights.get(f"{prefix}.experts.down.bias"),
            spec.activation,
            _joinable(context, spec),
        )
        self._latent: Linear | None = None
        if spec.latent is not None:
            self._latent = Linear(context.ops, weights, f"{prefix}.into_latent")
            self._from_latent = weights[f"{prefix}.from_latent.weight"]
        self._shared = None if spec.shared is None else DenseMLP(context, spec.shared, "shared")
        assert self._latent is None or not spec.has_shared_gate, "no family has both"
        self._leaves_sum = context.comm.size == 1 and not context.norms.follow

    def __call__(self, x: Array) -> Array | ExpertResults:
        """Map ``[N, D]`` to ``[N, D]``; the sum may be left to the norm behind the layer."""
        joins = self._experts.shared is not None and self._ops.joins_shared(self._experts, len(x))
        options = {**self._optional, "counts": self._counts}
        routing = self._ops.route(x, self._router, self._spec.router, joins_shared=joins, **options)
        if self._latent is not None:
            mixed = self._ops.mixture(self._latent(x), routing, self._experts, None)
            shared = (
                None if self._shared is None else self._shared(x)
            )  # overwrites the latent rows, read by now
            return self._ops.from_latent(mixed, self._from_latent, shared)
        shared = None if joins or self._shared is None else self._shared(x)
        return self._ops.mixture(x, routing, self._experts, shared, leaves_sum=self._leaves_sum)


def _joinable(context: LayerContext, spec: MoeSpec) -> tuple[HeldWeight, HeldWeight] | None:
    """Return the shared expert's weights if it computes what the others do."""
    if spec.latent is not None or spec.shared != DenseSpec(spec.inner, activation=spec.activation):
        return None
    prefix, weights = f"{context.prefix}.shared", context.weights
    first = "gate_up" if spec.is_gated else "up"
    return weights[f"{prefix}.{first}.weight"], weights[f"{prefix}.down.weight"]
