"""Counters of the experts' load: tokens sent to each, and steps that sent it any."""

from __future__ import annotations

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
        counts: ``[layers, 2, E]`` of :meth:`.MoeOps.expert_counts`, E that of the largest; None: there are no
            mixtures.
    """

    def __init__(self, spec: ModelSpec, ops: MoeOps) -> None:
        self._experts = {
            index: layer.ffn.router.experts
            for index, layer in enumerate(spec.layers)
            if isinstance(layer.ffn, MoeSpec)
        }
        self.layers = tuple(self._experts)
        sizes = len(self.layers), max(self._experts.values(), default=0)
        self.counts: Array | None = ops.expert_counts(*sizes) if self.layers else None

    def of_layer(self, index: int) -> Array | None:
        """Return a layer's counters ``[2, E]``; None if it is no mixture."""
        if self.counts is None or index not in self._experts:
            return None
        return self.counts[self.layers.index(index), :, : self._experts[index]]
