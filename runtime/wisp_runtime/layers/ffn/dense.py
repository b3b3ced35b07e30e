"""Gated MLP: one GEMM for gate and up, SiLU, down projection."""

from __future__ import annotations

from collections.abc import Iterator

from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.linear import Linear
from wisp_runtime.weights.arena import Parameter, Part


class GatedMLP:
    """``down(silu(gate x) * up x)``.

    Args:
        context: where the layer stands; its weights are those that :func:`mlp_parameters` lists.
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


def mlp_parameters(model: ModelSpec, layer: int) -> Iterator[Parameter]:
    """List the weights of one layer's MLP; gate and up are stacked into one matrix."""
    spec = model.layers[layer].ffn
    assert isinstance(spec, DenseSpec)
    source, name = f"model.layers.{layer}.mlp", f"layers.{layer}"
    for kind, inputs in (("weight", (model.hidden,)), ("bias", ())):
        if kind == "bias" and not spec.has_bias:
            continue
        pair = tuple(Part(f"{source}.{half}_proj.{kind}", spec.inner) for half in ("gate", "up"))
        yield Parameter(f"{name}.gate_up.{kind}", (2 * spec.inner, *inputs), pair, "gate_up_interleaved")
        outer = (spec.inner,) if inputs else ()
        down = Part(f"{source}.down_proj.{kind}", model.hidden)
        yield Parameter(f"{name}.down.{kind}", (model.hidden, *outer), (down,))
