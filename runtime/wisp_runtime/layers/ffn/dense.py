"""The gated MLP: gate and up in one product, SiLU, down."""

from __future__ import annotations

from collections.abc import Iterator

from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array
from wisp_runtime.layers.linear import Linear
from wisp_runtime.ops.protocol.backend import Ops
from wisp_runtime.weights.arena import Parameter, Part, Weights


class GatedMLP:
    """``down(silu(gate x) * up x)``.

    Args:
        ops: the device.
        weights: holds what :func:`mlp_parameters` lists.
        prefix: of the layer, ``layers.0``.
    """

    def __init__(self, ops: Ops, weights: Weights, prefix: str) -> None:
        self._ops = ops
        self._gate_up = weights[f"{prefix}.gate_up.weight"]
        self._gate_up_bias = weights.get(f"{prefix}.gate_up.bias")
        self._down = Linear(ops, weights, f"{prefix}.down")

    def __call__(self, x: Array) -> Array:
        """Map ``[N, D]`` to ``[N, D]``."""
        return self._down(self._ops.swiglu(x, self._gate_up, self._gate_up_bias))


def mlp_parameters(spec: ModelSpec, layer: int) -> Iterator[Parameter]:
    """List the weights of one layer's MLP; gate and up are stacked into one matrix."""
    source, name = f"model.layers.{layer}.mlp", f"layers.{layer}"
    for kind, inputs in (("weight", (spec.hidden,)), ("bias", ())):
        if kind == "bias" and not spec.has_mlp_bias:
            continue
        pair = tuple(Part(f"{source}.{half}_proj.{kind}", spec.mlp) for half in ("gate", "up"))
        yield Parameter(f"{name}.gate_up.{kind}", (2 * spec.mlp, *inputs), pair, "gate_up_interleaved")
        outer = (spec.mlp,) if inputs else ()
        down = Part(f"{source}.down_proj.{kind}", spec.hidden)
        yield Parameter(f"{name}.down.{kind}", (spec.hidden, *outer), (down,))
