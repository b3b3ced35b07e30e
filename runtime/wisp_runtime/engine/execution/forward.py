"""Forward pass of a model over its cache, and by which kernels: the runner's choice, not the model's."""

from __future__ import annotations

from wisp_runtime.batch import Batch
from wisp_runtime.layers.cache import KVCache
from wisp_runtime.models.model import Model, Output
from wisp_runtime.ops.protocol.persistent import WholeStep


class ForwardPass:
    """A model with its cache.

    Args:
        model: computes logits op by op.
        cache: keys and values of all layers.

    Attributes:
        persistent: the kernel that computes a decode step in one launch; None if there is none.
    """

    def __init__(self, model: Model, cache: KVCache) -> None:
        self.model, self.cache = model, cache
        self.persistent: WholeStep | None = None

    def __call__(self, batch: Batch) -> Output:
        """Write the K and V of the batch's tokens to the cache; return logits."""
        if self.persistent is not None and self.persistent.takes(batch):
            return Output(self.persistent(batch, self.cache.keys, self.cache.values))
        return self.model.forward(batch, self.cache)
