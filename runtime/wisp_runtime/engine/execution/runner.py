"""Run a plan on the CPU: pack it, call the model, draw the next tokens. Owns the model and the KV cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wisp_runtime.batch import Array, Sampled, SamplingBatch
from wisp_runtime.engine.execution.packing import pack
from wisp_runtime.engine.execution.sampler import draws, sampling_batch
from wisp_runtime.engine.scheduling.plan import Draw, Plan
from wisp_runtime.layers.cache import KVCache
from wisp_runtime.models.model import Model

Sample = Callable[[Array, SamplingBatch], Sampled]


@dataclass(frozen=True, slots=True)
class Done:
    """A step that is over."""

    drawn: list[Draw]

    def draws(self) -> list[Draw]:
        """Return one draw per chunk that sampled, in the plan's order."""
        return self.drawn


class Runner:
    """A model that runs plans, each to its end before ``launch`` returns.

    Args:
        model: computes logits.
        cache: where it keeps keys and values.
        sample: draws tokens from ``[R, V]`` logits; ``ops.sample`` of the model's device.
    """

    overlaps = False

    def __init__(self, model: Model, cache: KVCache, sample: Sample) -> None:
        self.model = model
        self.cache = cache
        self.sample = sample

    def launch(self, plan: Plan) -> Done:
        """Compute the chunks of ``plan`` and draw a token for each that samples."""
        batch = pack(plan, self.cache.block_tokens)
        logits = self.model.forward(batch, self.cache)
        rows = len(batch.logit_rows)
        if not rows:
            return Done([])
        sampled = self.sample(logits, sampling_batch(plan))
        # The chosen logit is NaN or infinite if anything that matters in its row is.
        is_sound = np.isfinite(logits[np.arange(rows), sampled.tokens])
        return Done(draws(plan, sampled, is_sound.tolist()))
