"""An engine's process with a Markov chain over markup as model: real scheduler, runner, sampler; no maths.

The next byte follows from the two before, read back through block tables, as they do in texts with thinking
and tool calls. So answers are broken markup of every kind, and a block mixed up raises. Run as a module.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "runtime/support"))
from fake_engine import END, HIDDEN, MAX_CONTEXT, VOCAB

from wisp_plan.memory.cache import one_pool
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec, dense_decoder
from wisp_plan.spec.rope import RopeSpec
from wisp_runtime.batch import Batch
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.constrained.compiler import compiler_of
from wisp_runtime.engine.execution.cpu_runner import CpuRunner
from wisp_runtime.engine.phases import phase
from wisp_runtime.engine.process import main
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.startup import Engine
from wisp_runtime.engine.transport.messages import Phase, Ready
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.models.model import Output
from wisp_runtime.ops.cpu.ops import CpuOps

BLOCKS, BLOCK_TOKENS, CONCURRENT = 256, 16, 32
TEXTS = (
    "<think>Hm, so be it.</think>So.",
    '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
    '{"a": 1, "b": ["x", "\\u00e9"]} yes é no. ',
    "assistant\nSay it. Hello, world. ",
)


def chain() -> tuple[np.ndarray, np.ndarray]:
    """Return ``[V, V]`` numbers of the states that two tokens make, and ``[states, V]`` their logits."""
    after = defaultdict[tuple[int, int], list[int]](list)
    for text in TEXTS:
        tokens = [10, *text.encode(), END]  # a template ends with a line break
        for before, first, second in zip([10, *tokens], tokens, tokens[1:], strict=False):
            after[before, first].append(second)
    states, logits = np.zeros((VOCAB, VOCAB), np.int64), [_logits(b"<{ae. ")]
    for (before, first), followers in after.items():
        states[before, first] = len(logits)
        logits.append(_logits(followers))
    return states, np.stack(logits)


def _logits(likely: Sequence[int]) -> np.ndarray:
    logits = np.full(VOCAB, -8.0, np.float32)
    logits[[END, *likely]] = np.linspace(0, 2, 1 + len(likely), dtype=np.float32)
    return logits


def spec() -> ModelSpec:
    """Return the chain as a model's spec."""
    return dense_decoder(
        "Markov",
        "markov",
        layers=1,
        hidden=HIDDEN,
        inner=1,
        vocab=VOCAB,
        max_context=MAX_CONTEXT,
        attention=AttentionSpec(1, 1, 1, RopeSpec()),
        norm_eps=1e-5,
        eos_token_ids=(END,),
    )


@dataclass
class MarkovModel:
    """The chain; keys are tokens, values their positions."""

    spec: ModelSpec = field(default_factory=spec)
    chain: tuple[np.ndarray, np.ndarray] = field(default_factory=chain)

    def forward(self, batch: Batch, cache: ModelCache) -> Output:
        """Write the step's tokens, read the last ones of each sequence back, return the logits after each."""
        group = batch.of_group(0)
        tokens, positions = (array.reshape(-1) for array in cache.groups[0])
        live = group.slots >= 0
        tokens[group.slots[live]] = batch.tokens[live]
        positions[group.slots[live]] = batch.positions[live]
        for b, context in enumerate(batch.context_lengths.tolist()):
            places = np.arange(context)
            blocks = group.block_tables[b, places // BLOCK_TOKENS].astype(np.int64)
            if (positions[blocks * BLOCK_TOKENS + places % BLOCK_TOKENS] != places).any():
                raise AssertionError("a block holds another sequence's tokens")
        rows = batch.logit_rows
        sequences = np.searchsorted(batch.query_starts, rows, side="right") - 1
        before = np.maximum(batch.positions[rows] - 1, 0)
        slots = group.block_tables[sequences, before // BLOCK_TOKENS].astype(np.int64) * BLOCK_TOKENS
        states, logits = self.chain
        hidden = np.ones((len(batch.tokens), HIDDEN), np.float32)
        hidden[:, 0], hidden[:, 1] = batch.tokens, batch.positions
        of_two = states[tokens[slots + before % BLOCK_TOKENS], batch.tokens[rows]]
        return Output(logits[of_two], hidden[rows], hidden)


def start(config: ServeConfig, report: Callable[[Phase], None]) -> Engine:
    """Start the engine of a folder that ``fake_engine.write_model`` wrote."""
    with phase("firstToken", report):
        sizes = one_pool(BLOCKS, BLOCK_TOKENS)
        shape = (1, BLOCKS, 1, BLOCK_TOKENS, 1)
        arrays = np.full(shape, 255, np.int64), np.full(shape, -1, np.int64)
        model = MarkovModel()
        cache = ModelCache(BLOCK_TOKENS, (), (arrays,), (), lambda array, source, target: None)
        runner = CpuRunner(model, cache, CpuOps().sample)
    limits = Limits(
        sizes,
        MAX_CONTEXT,
        CONCURRENT,
        MAX_CONTEXT,
        VOCAB,
        frozenset({END}),
        max_waiting=config.max_waiting,
        max_queue_wait_s=config.max_queue_wait,
        poolings=frozenset({"last", "mean", "logits"}),
    )
    scheduler = Scheduler(limits)
    ready = Ready(
        *(MAX_CONTEXT, CONCURRENT, VOCAB, (END,), {}, {"set": "markov"}, "cpu", scheduler.load),
        hidden_size=HIDDEN,
        poolings=limits.poolings,
    )
    compiler = compiler_of(Path(config.model), model.spec)
    return Engine(scheduler, runner, ready, compiler=compiler)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], start))
