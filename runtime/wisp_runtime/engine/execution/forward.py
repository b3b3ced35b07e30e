"""Forward pass of a model over its cache; the runner, not the model, chooses the kernels."""

from __future__ import annotations

from wisp_runtime.batch import Batch
from wisp_runtime.engine.scheduling.plan import Plan
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.models.model import Model, Output
from wisp_runtime.ops.protocol.persistent import PersistentKernel


class ForwardPass:
    """A model with its cache.

    Args:
        model: model that runs op by op.
        cache: caches of all layers.

    Attributes:
        persistent: persistent decode kernel; None if there is none.
    """

    def __init__(self, model: Model, cache: ModelCache) -> None:
        self.model, self.cache = model, cache
        self.persistent: PersistentKernel | None = None

    def __call__(self, batch: Batch) -> Output:
        """Write K, V and states of the batch's tokens to the cache; return logits."""
        if self.persistent is not None and self.persistent.takes(batch):
            return Output(self.persistent(batch, self.cache.groups, self.cache.states))
        return self.model.forward(batch, self.cache)

    def restore_states(self, plan: Plan) -> None:
        """Copy snapshots to the states of chunks that continue from one; before the step's forward pass."""
        if self.cache.states:
            for chunk in plan:
                if chunk.restore_slot >= 0:
                    self.cache.copy_state(chunk.restore_slot, chunk.sequence.cache.state_slot)

    def save_states(self, plan: Plan) -> None:
        """Copy the states of chunks to their snapshots; after the step's forward pass."""
        if self.cache.states:
            for chunk in plan:
                if chunk.snapshot_slot >= 0:
                    self.cache.copy_state(chunk.sequence.cache.state_slot, chunk.snapshot_slot)
