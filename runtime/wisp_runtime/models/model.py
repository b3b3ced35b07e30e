"""What every model family offers to the engine."""

from __future__ import annotations

from typing import Protocol

from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.layers.cache import KVCache
from wisp_runtime.ops.protocol.persistent import WholeStep


class Model(Protocol):
    """A loaded model. Stateless between calls: all that a sequence leaves behind is in the cache."""

    spec: ModelSpec
    whole_step: WholeStep | None  # what runs decode steps in one launch

    def use_whole_steps(self, max_sequences: int) -> str | None:
        """Run decode steps of up to ``max_sequences`` in one launch from here on; say why not if not."""
        ...

    def forward(self, batch: Batch, cache: KVCache) -> Array:
        """Run one step: write the K and V of its tokens to ``cache`` and return ``[R, V]`` float32 logits."""
        ...
