"""Arguments that every layer's constructor takes beside its own spec."""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.spec.layer import NormSpec
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array
from wisp_runtime.comm.none import NO_COMM
from wisp_runtime.comm.protocol import Comm
from wisp_runtime.layers.rotary import RopeTables
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.weights.arena import Weights


@dataclass(frozen=True, slots=True)
class LayerContext:
    """Where a layer stands.

    Attributes:
        ops: the device.
        weights: weights of the model.
        model: its spec.
        index: position of the layer.
        ropes: cos/sin tables, shared by layers of equal embeddings.
        comm: the ranks that share the model.
        part: position of a mixer among those in parallel.
        expert_counts: ``[2, E]``, counters of the load of the layer's experts; None: it has none.
    """

    ops: Ops
    weights: Weights
    model: ModelSpec
    index: int
    ropes: RopeTables
    comm: Comm = NO_COMM
    part: int = 0
    expert_counts: Array | None = None

    @property
    def prefix(self) -> str:
        """Prefix of the layer's weights, ``layers.3``."""
        return f"layers.{self.index}"

    @property
    def norms(self) -> NormSpec:
        """Norms of the layer."""
        return self.model.layers[self.index].norms
