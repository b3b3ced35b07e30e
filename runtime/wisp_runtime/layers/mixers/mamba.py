"""Mamba-2: one GEMM in, the recurrent part as one operation of the device, output projection."""

from __future__ import annotations

from wisp_plan.spec.mamba import MambaSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.linear import Linear
from wisp_runtime.ops.protocol.recurrent import MambaWeights, RecurrentStep


class Mamba:
    """One layer's Mamba-2 mixer.

    Args:
        context: position of the layer, and its weights.
        spec: heads and sizes.
    """

    def __init__(self, context: LayerContext, spec: MambaSpec) -> None:
        ops, weights, name = context.ops, context.weights, f"{context.prefix}.mamba"
        self._ops, self._spec, self._place = ops, spec, (context.index, context.part)
        self._input = weights[f"{name}.input.weight"], weights.get(f"{name}.input.bias")
        self._output = Linear(ops, weights, f"{name}.output")
        self._weights = MambaWeights(
            conv=weights[f"{name}.conv.weight"],
            conv_bias=weights.get(f"{name}.conv.bias"),
            decay=weights[f"{name}.decay"],
            step_bias=weights[f"{name}.step_bias"],
            skip=weights[f"{name}.skip"],
            norm=weights.get(f"{name}.norm.weight"),
        )

    def __call__(self, x: Array, batch: Batch, cache: ModelCache, rows: Array | None = None) -> Array:
        """Map ``[N, D]`` to ``[N, D]``, updating the states of this step's sequences.

        Args:
            rows: ``[R]``, the rows of the result that are wanted, ``[R, D]``; states are updated for all.
        """
        states, inputs = cache.of_layer(*self._place).arrays
        projected = self._ops.project_mamba(x, *self._input)
        step = RecurrentStep(batch, states, inputs, rows)
        return self._output(self._ops.mamba(projected, self._weights, self._spec, step))
