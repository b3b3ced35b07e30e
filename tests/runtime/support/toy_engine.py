"""A model that is nothing but its cache: a token depends on all before it, read back through block tables.

It keeps token ids as keys and positions as values, so a block, slot or position mixed up anywhere
changes the answer or raises. ``answer`` says what it must say, without any engine. Run as a module, it is
an engine's process with the toy in it.
"""

from __future__ import annotations

import atexit
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from wisp_plan.memory.cache import CacheSizes, one_pool
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec, dense_decoder
from wisp_plan.spec.rope import RopeSpec
from wisp_runtime.batch import Batch, Sampled, SamplingBatch
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.execution.cpu_runner import CpuRunner, CpuStep
from wisp_runtime.engine.process import main
from wisp_runtime.engine.scheduling.plan import Limits, Plan
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.startup import Engine, phase
from wisp_runtime.engine.transport.messages import Phase, Ready, Submit
from wisp_runtime.layers.cache import ModelCache, kv_cache
from wisp_runtime.models.model import Output

VOCAB = 13
EOS = 12


def greedy_token(tokens: list[int]) -> int:
    """What the toy says after ``tokens``: their checksum."""
    return zlib.crc32(bytes(tokens)) % VOCAB


def stir(seed: int, step: int) -> int:
    """What a seed adds to a token sampled at position ``step``."""
    return zlib.crc32(f"{seed}/{step}".encode())


def answer(request: Submit, max_context: int, window: int | None = None) -> list[int]:
    """The tokens ``request`` must get, whoever else is there."""
    tokens, sampling = list(request.prompt), request.sampling
    end = min(len(tokens) + request.max_tokens, max_context)
    stops = set(request.stop_token_ids) | (set() if request.ignore_eos else {EOS})
    while len(tokens) < end:
        token = greedy_token(tokens[-window:] if window else tokens)
        if sampling.temperature:
            token += stir(sampling.seed, len(tokens))
        if sampling.presence_penalty:
            token += sum(count**2 for count in Counter(tokens[len(request.prompt) :]).values())
        tokens.append(token % VOCAB)
        if tokens[-1] in stops:
            break
    return tokens[len(request.prompt) :]


@dataclass
class ToyModel:
    spec: ModelSpec = field(
        default_factory=lambda: dense_decoder(
            "Toy",
            "toy",
            layers=1,
            hidden=1,
            inner=1,
            vocab=VOCAB,
            max_context=1 << 20,
            attention=AttentionSpec(1, 1, 1, RopeSpec()),
            norm_eps=1e-5,
            eos_token_ids=(EOS,),
        )
    )
    computed_tokens: int = 0
    window: int | None = None

    def forward(self, batch: Batch, cache: ModelCache) -> Output:
        self.computed_tokens += len(batch.tokens)
        tokens, positions = cache.keys.reshape(-1), cache.values.reshape(-1)
        live = batch.slots >= 0
        tokens[batch.slots[live]] = batch.tokens[live]
        positions[batch.slots[live]] = batch.positions[live]
        logits = np.zeros((len(batch.logit_rows), VOCAB), dtype=np.float32)
        for b, context in enumerate(batch.context_lengths.tolist()):
            first, last = int(batch.query_starts[b]), int(batch.query_starts[b + 1]) - 1
            if not context:  # padding
                assert batch.slots[last] == -1
                continue
            assert context == batch.positions[last] + 1
            places = np.arange(self.first_seen(int(batch.positions[first])), context)
            blocks = batch.block_tables[b, places // cache.block_tokens]
            slots = blocks.astype(np.int64) * cache.block_tokens + places % cache.block_tokens
            np.testing.assert_array_equal(positions[slots], places)
            seen = tokens[slots[self.first_seen(context - 1) - places[0] :]].tolist()
            logits[batch.logit_rows == last, greedy_token(seen)] = 1.0
        return Output(logits)

    def first_seen(self, position: int) -> int:
        return max(0, position - self.window + 1) if self.window else 0


def toy_sample(logits: np.ndarray, sampling: SamplingBatch) -> Sampled:
    """Greedy, or stirred by (seed, step) and by the counts of what was generated, as ``answer`` does."""
    tokens = logits.argmax(axis=1)
    for row in range(len(tokens)):
        counts = sampling.counts[slice(*sampling.count_starts[row : row + 2])]
        tokens[row] += sum(count**2 for count in counts.tolist()) if sampling.presence_penalty[row] else 0
        tokens[row] += stir(sampling.seeds[row], sampling.steps[row]) if sampling.temperature[row] else 0
    return Sampled((tokens % VOCAB).astype(np.int32))


def toy_runner(sizes: CacheSizes) -> CpuRunner:
    """A runner of the toy, its cache filled with what no one wrote."""
    shape = (1, sizes.pools[0].blocks, 1, sizes.block_tokens, 1)
    cache = kv_cache(np.full(shape, 255, np.int64), np.full(shape, -1, np.int64), sizes.block_tokens)
    return CpuRunner(ToyModel(window=sizes.pools[0].group.spec.window), cache, toy_sample)


class TroubledRunner(CpuRunner):
    """The toy's runner, as slow or as broken as ``model`` in its settings says."""

    def __init__(self, trouble: str, sizes: CacheSizes) -> None:
        toy = toy_runner(sizes)
        super().__init__(toy.forward_pass.model, toy.forward_pass.cache, toy.sample)
        self.trouble = trouble

    def forward(self, plan: Plan) -> CpuStep:
        if self.trouble == "slow":
            time.sleep(0.02)
        if self.trouble == "stuck":
            time.sleep(120)
        if self.trouble == "raises" and any(chunk.sequence.generated_tokens for chunk in plan):
            raise ZeroDivisionError("the toy was asked to raise")
        if self.trouble == "lingers" and any(chunk.sequence.generated_tokens for chunk in plan):
            atexit.register(time.sleep, 120)  # as the driver may, whose GPU does not answer any more
            self.error = ZeroDivisionError("the toy was asked to linger")  # as a future does: frames live on
            raise self.error
        return super().forward(plan)


def toy_start(config: ServeConfig, report: Callable[[Phase], None]) -> Engine:
    """Start-up without a model; ``late`` takes half a second."""
    with phase("weights", report):
        time.sleep(0.5 if config.model == "late" else 0)
    limits = Limits(
        one_pool(64, 4), config.max_step_tokens or 512, config.max_concurrent, 128, VOCAB, frozenset({EOS})
    )
    scheduler, kernels = Scheduler(limits), {"set": "toy"}
    eos = tuple(limits.eos)
    ready = Ready(limits.max_context, limits.max_concurrent, VOCAB, eos, {}, kernels, "cpu", scheduler.load)
    return Engine(scheduler, TroubledRunner(config.model, limits.cache), ready)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], toy_start))
