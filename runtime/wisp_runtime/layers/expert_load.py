"""Load of a model's experts: tokens sent to each, and steps that sent it any, counted by the router."""

from __future__ import annotations

import numpy as np

from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.moe import MoeOps


class ExpertLoad:
    """Counters of all mixtures of a model, in one array of the device.

    Args:
        spec: the model.
        ops: the device.

    Attributes:
        layers: layers that are mixtures, ascending.
        experts: E of each of them.
        counts: ``[layers, 2, E]`` of :meth:`.MoeOps.expert_counts`, E that of the largest; None: there are no
            mixtures.
    """

    def __init__(self, spec: ModelSpec, ops: MoeOps) -> None:
        mixtures = {
            index: layer.ffn for index, layer in enumerate(spec.layers) if isinstance(layer.ffn, MoeSpec)
        }
        self.layers = tuple(mixtures)
        self.experts = tuple(moe.router.experts for moe in mixtures.values())
        self._ops = ops
        sizes = len(self.layers), max(self.experts, default=0)
        self.counts: Array | None = ops.expert_counts(*sizes) if self.layers else None
        self._before: Array = np.zeros((sizes[0], 2, sizes[1]), np.int64)

    def of_layer(self, index: int) -> Array | None:
        """Return a layer's counters ``[2, E]``; None if it is no mixture."""
        if self.counts is None or index not in self.layers:
            return None
        row = self.layers.index(index)
        return self.counts[row, :, : self.experts[row]]

    def restart(self) -> None:
        """Count from here on, without the steps of a start."""
        self._before += self.read()

    def read(self) -> Array:
        """Return what was counted since the last :meth:`restart`, ``[layers, 2, E]``; waits for the device.

        Row 0 has the tokens sent to each expert, row 1 the steps that sent it any.
        """
        if self.counts is None:
            return self._before
        counted: Array = self._ops.counts_on_host(self.counts) - self._before
        return counted
