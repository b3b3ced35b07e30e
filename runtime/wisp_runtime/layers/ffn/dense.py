"""MLP: one GEMM for gate and up, or up alone, the activation, down projection."""

from __future__ import annotations

from wisp_plan.spec.ffn import DenseSpec
from wisp_runtime.batch import Array
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.linear import Linear


class DenseMLP:
    """``down(silu(gate x) * up x)``, with GELU for SiLU, or without a gate ``down(max(up x, 0) ** 2)``.

    Args:
        context: position of the layer, and its weights.
        spec: activation and scales; the weights have the sizes.
        name: name of the block in the layer; None: it is the layer's only one.
    """

    def __init__(self, context: LayerContext, spec: DenseSpec, name: str | None = None) -> None:
        prefix = f"{context.prefix}.{name}" if name else context.prefix
        first = f"{prefix}.{'gate_up' if spec.is_gated else 'up'}"
        self._ops, self._spec = context.ops, spec
        self._weight, self._bias = context.weights[f"{first}.weight"], context.weights.get(f"{first}.bias")
        self._down = Linear(context.ops, context.weights, f"{prefix}.down")

    def __call__(self, x: Array) -> Array:
        """Map ``[N, D]`` to ``[N, D]``."""
        out = self._down(self._activated(x))
        return out if self._spec.scale == 1 else self._ops.scale(out, self._spec.scale)

    def _activated(self, x: Array) -> Array:
        if not self._spec.is_gated:
            return self._ops.relu2(x, self._weight, self._bias)
        if self._spec.activation == "gelu_tanh":
            return self._ops.geglu(x, self._weight, self._bias)
        assert self._spec.activation == "silu", f"no MLP computes {self._spec.activation}"
        if self._spec.gate_scale == 1:
            return self._ops.swiglu(x, self._weight, self._bias)
        return self._ops.scaled_swiglu(x, self._weight, self._bias, self._spec.gate_scale)
