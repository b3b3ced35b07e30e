"""Run a plan: pack it, call the model, draw the next tokens. Owns the model and the KV cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wisp_runtime.batch import Array, Sampled, SamplingBatch
from wisp_runtime.engine.packing import pack
from wisp_runtime.engine.plan import Draw, Plan
from wisp_runtime.engine.sampler import draws, sampling_batch
from wisp_runtime.memory.kv import KVCache
from wisp_runtime.models.model import Model

Sample = Callable[[Array, SamplingBatch], Sampled]


class Runner:
    """A model that runs plans.

    Args:
        model: computes logits.
        cache: where it keeps keys and values.
        sample: draws tokens from ``[R, V]`` logits; ``ops.sample`` of the model's device.
    """

    def __init__(self, model: Model, cache: KVCache, sample: Sample) -> None:
        self.model = model
        self.cache = cache
        self.sample = sample

    def step(self, plan: Plan) -> list[Draw]:
        """Compute the chunks of ``plan``; return one draw per chunk that samples, in order."""
        batch = pack(plan, self.cache.block_tokens)
        logits = self.model.forward(batch, self.cache)
        rows = len(batch.logit_rows)
        if not rows:
            return []
        sampled = self.sample(logits, sampling_batch(plan))
        # The chosen logit is NaN or infinite if anything that matters in its row is.
        is_sound = np.isfinite(logits[np.arange(rows), sampled.tokens])
        return draws(plan, sampled, is_sound.tolist())
