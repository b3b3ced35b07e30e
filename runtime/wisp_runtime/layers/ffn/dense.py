"""Gated MLP: one GEMM for gate and up, SiLU, down projection."""

from __future__ import annotations

from wisp_plan.spec.ffn import DenseSpec
from wisp_runtime.batch import Array
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.linear import Linear


class GatedMLP:
    """``down(silu(gate x) * up x)``.

    Args:
        context: position of the layer, and its weights.
        spec: its sizes.
    """

    def __init__(self, context: LayerContext, spec: DenseSpec) -> None:  # noqa: ARG002 (the weights have the sizes)
        ops, weights, prefix = context.ops, context.weights, context.prefix
        self._ops = ops
        self._gate_up = weights[f"{prefix}.gate_up.weight"]
        self._gate_up_bias = weights.get(f"{prefix}.gate_up.bias")
        self._down = Linear(ops, weights, f"{prefix}.down")

    def __call__(self, x: Array) -> Array:
        """Map ``[N, D]`` to ``[N, D]``."""
        return self._down(self._ops.swiglu(x, self._gate_up, self._gate_up_bias))
