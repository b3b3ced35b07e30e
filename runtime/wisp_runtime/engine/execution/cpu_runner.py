"""Run a plan on the CPU: pack it, call the model, sample the next tokens. Owns the model and the KV cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wisp_runtime.batch import Array, Sampled, SamplingBatch
from wisp_runtime.engine.execution.forward import ForwardPass
from wisp_runtime.engine.execution.packing import pack
from wisp_runtime.engine.execution.pooling import pool_on_host, with_vectors
from wisp_runtime.engine.execution.sampler import sampling_batch, tokens_of
from wisp_runtime.engine.scheduling.plan import Plan, SampledToken
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.models.model import Model, Output

Sample = Callable[[Array, SamplingBatch], Sampled]


class CpuStep:
    """A step whose forward pass is over; see :class:`.runner.LaunchedStep`.

    Args:
        plan: its chunks.
        output: results of the model.
        sample: sampler, as of :class:`CpuRunner`.
    """

    def __init__(self, plan: Plan, output: Output, sample: Sample) -> None:
        self.plan = plan
        self._logits, self._sample = output.logits, sample
        self._vectors = pool_on_host(plan, output)
        self._tokens: list[SampledToken] = []

    def sample(self) -> None:
        """Choose a token for each row of logits."""
        rows = sum(chunk.logits for chunk in self.plan)
        if not rows:
            return
        sampled = self._sample(self._logits, sampling_batch(self.plan))
        # The chosen logit is NaN or infinite if anything that matters in its row is.
        is_sound = np.isfinite(self._logits[np.arange(rows), sampled.tokens])
        self._tokens = with_vectors(tokens_of(self.plan, sampled, is_sound.tolist()), self._vectors)

    def sampled_tokens(self) -> list[SampledToken]:
        """Return one token per chunk with logits, in the plan's order."""
        return self._tokens


class CpuRunner:
    """A model that runs plans, each call to its end before it returns.

    Args:
        model: model on the CPU.
        cache: caches of its layers.
        sample: sampler of tokens from ``[R, V]`` logits; ``ops.sample`` of the model's device.
    """

    overlaps = False

    def __init__(self, model: Model, cache: ModelCache, sample: Sample) -> None:
        self.forward_pass = ForwardPass(model, cache)
        self.sample = sample

    def forward(self, plan: Plan) -> CpuStep:
        """Compute the chunks of ``plan``."""
        batch = pack(plan, self.forward_pass.cache.block_tokens)
        self.forward_pass.restore_states(plan)
        output = self.forward_pass(batch)
        self.forward_pass.save_states(plan)
        return CpuStep(plan, output, self.sample)
