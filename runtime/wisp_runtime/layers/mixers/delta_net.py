"""Gated DeltaNet: two GEMMs in, the recurrent part as one operation of the device, output projection."""

from __future__ import annotations

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.linear import Linear
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights, RecurrentStep


class DeltaNet:
    """One layer's Gated DeltaNet.

    Args:
        context: position of the layer, and its weights.
        spec: heads and sizes.
    """

    def __init__(self, context: LayerContext, spec: DeltaNetSpec) -> None:
        ops, weights, name = context.ops, context.weights, context.prefix
        self._ops, self._spec, self._layer = ops, spec, context.index
        self._projections = weights[f"{name}.qkvz.weight"], weights[f"{name}.gates.weight"]
        self._output = Linear(ops, weights, f"{name}.output")
        self._weights = DeltaNetWeights(
            conv=weights[f"{name}.conv.weight"],
            decay=weights[f"{name}.decay"],
            step_bias=weights[f"{name}.step_bias"],
            norm=weights[f"{name}.gated_norm.weight"],
            eps=context.norms.eps,
        )

    def __call__(self, x: Array, batch: Batch, cache: ModelCache, rows: Array | None = None) -> Array:
        """Map ``[N, D]`` to ``[N, D]``, updating the states of this step's sequences.

        Args:
            rows: ``[R]``, the rows of the result that are wanted, ``[R, D]``; states are updated for all.
        """
        states, inputs = cache.of_layer(self._layer).arrays
        projected, gates = self._ops.project_delta_net(x, *self._projections, batch)
        step = RecurrentStep(batch, states, inputs, rows)
        return self._output(self._ops.delta_net(projected, gates, self._weights, self._spec, step))
