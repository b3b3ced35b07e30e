"""What every model family offers to the engine."""

from __future__ import annotations

from typing import Protocol

from wisp_plan.spec import ModelSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.memory.kv import KVCache


class Model(Protocol):
    """A loaded model. Stateless between calls: all that a sequence leaves behind is in the cache."""

    spec: ModelSpec

    def forward(self, batch: Batch, cache: KVCache) -> Array:
        """Run one step: write the K and V of its tokens to ``cache`` and return ``[R, V]`` float32 logits."""
        ...
