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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from wisp_plan.memory.cache import CacheSizes, one_pool
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec, dense_decoder
from wisp_plan.spec.rope import RopeSpec
from wisp_runtime.batch import Batch, Sampled, SamplingBatch
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.execution.cpu_runner import CpuRunner, CpuStep
from wisp_runtime.engine.phases import phase
from wisp_runtime.engine.process import main
from wisp_runtime.engine.scheduling.plan import Limits, Plan
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.startup import Engine
from wisp_runtime.engine.transport.messages import Phase, Ready, Submit
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.models.model import Output

VOCAB = 13
EOS = 12
STATE = 7
"""Initial checksum of a sequence's state."""
ONE_POOL = one_pool(1, 1)


def greedy_token(tokens: list[int]) -> int:
    """What the toy says after ``tokens``: their checksum."""
    return zlib.crc32(bytes(tokens)) % VOCAB


def stir(seed: int, step: int) -> int:
    """What a seed adds to a token sampled at position ``step``."""
    return zlib.crc32(f"{seed}/{step}".encode())


def toy_token(tokens: list[int], sizes: CacheSizes) -> int:
    """Return the toy's token after ``tokens``: checksums of those a group sees, and of all as its state."""
    windows = [pool.group.spec.window for pool in sizes.pools]
    total = sum(greedy_token(tokens[-window:] if window else tokens) for window in windows)
    return (total + (zlib.crc32(bytes(tokens), STATE) if sizes.states else 0)) % VOCAB


def ends_of(request: Submit) -> set[int]:
    """Return the tokens that end an answer; under a rule, the end token too, ignored or not."""
    ignores_eos = request.ignore_eos and request.constraint is None
    return set(request.stop_token_ids) | (set() if ignores_eos else {EOS})


def answer(request: Submit, max_context: int, sizes: CacheSizes = ONE_POOL) -> list[int]:
    """The tokens ``request`` must get, whoever else is there."""
    tokens, sampling = list(request.prompt), request.sampling
    end = min(len(tokens) + request.max_tokens, max_context)
    stops = ends_of(request)
    while len(tokens) < end:
        token = toy_token(tokens, sizes)
        if sampling.temperature:
            token += stir(sampling.seed, len(tokens))
        if sampling.presence_penalty:
            token += sum(count**2 for count in Counter(tokens[len(request.prompt) :]).values())
        if sampling.repetition_penalty != 1:
            token += sum(set(tokens))
        token %= VOCAB
        ruled = ruled_token(request, token, tokens[len(request.prompt) :])
        if ruled is None:
            break
        tokens.append(ruled)
        if tokens[-1] in stops:
            break
    return tokens[len(request.prompt) :]


TOY_RULES = {"thirds": sys.maxsize, "fails": 3}
"""Rules on answers, and the number of tokens after which each fails."""


def allowed_after(generated: list[int]) -> set[int]:
    """Return the tokens that the toy's rules allow next: two thirds, by the sum of those before."""
    return {token for token in range(VOCAB) if (token + sum(generated)) % 3}


def next_allowed(token: int, allowed: set[int]) -> int:
    """Return the first allowed token from ``token`` on; that itself where none is."""
    after = (candidate % VOCAB for candidate in range(token, token + VOCAB) if candidate % VOCAB in allowed)
    return next(after, token)


def ruled_token(request: Submit, token: int, generated: list[int]) -> int | None:
    """Return what the rule of ``request`` makes of a token; None if it fails here."""
    if not request.constraint:
        return token
    has_failed = len(generated) >= TOY_RULES[request.constraint]
    return None if has_failed else next_allowed(token, allowed_after(generated))


class ToyRule:
    """A rule on the next token, without a grammar; see ``wisp_runtime.engine.constrained.constraint``."""

    def __init__(self, name: str) -> None:
        self.generated: list[int] = []
        self.max_tokens = TOY_RULES[name]
        self.error = ""
        self.is_over = self.is_free = False

    def allow_more(self, words: np.ndarray) -> None:
        raise AssertionError("this rule has no grammar")

    def advance(self, token: int) -> None:
        self.generated.append(token)

    def grammar(self) -> None:
        return None

    def fill(self, words: np.ndarray) -> None:
        assert (words == 0xFFFFFFFF).all()
        words[0] = sum(1 << token for token in allowed_after(self.generated))
        if len(self.generated) >= self.max_tokens:
            self.error = "the rule fails"


def toy_rule(request: Submit) -> ToyRule | None:
    """Return the rule that a request names."""
    return ToyRule(request.constraint) if request.constraint else None


@dataclass
class ToyModel:
    spec: ModelSpec = field(
        default_factory=lambda: dense_decoder(
            "Toy",
            "toy",
            layers=1,
            hidden=2,
            inner=1,
            vocab=VOCAB,
            max_context=1 << 20,
            attention=AttentionSpec(1, 1, 1, RopeSpec()),
            norm_eps=1e-5,
            eos_token_ids=(EOS,),
        )
    )
    computed_tokens: int = 0
    sizes: CacheSizes = ONE_POOL

    def forward(self, batch: Batch, cache: ModelCache) -> Output:
        self.computed_tokens += len(batch.tokens)
        says = np.zeros(len(batch.context_lengths), np.int64)
        for index, pool in enumerate(self.sizes.pools):
            group = batch.of_group(index)
            says += attend(batch, group, cache.groups[index], cache.block_tokens, pool.group.spec.window)
        if self.sizes.states:
            says += recur(batch, cache.states[0])
        rows = np.searchsorted(batch.query_starts, batch.logit_rows, side="right") - 1
        logits = np.zeros((len(batch.logit_rows), VOCAB), dtype=np.float32)
        logits[np.arange(len(rows)), says[rows] % VOCAB] = 1.0
        hidden = np.stack([says[rows], batch.context_lengths[rows]], axis=1).astype(np.float32)
        return Output(logits, hidden)


def sequences(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """Yield each sequence's row of B and its rows of N, padding left out."""
    for b, context in enumerate(batch.context_lengths.tolist()):
        first, end = batch.query_starts[b : b + 2].tolist()
        assert not context or context == batch.positions[end - 1] + 1
        if context:
            yield b, first, end


def attend(
    batch: Batch, group: Batch, arrays: tuple[np.ndarray, ...], block_tokens: int, window: int | None
) -> np.ndarray:
    """Write a group's tokens; return the checksum of those that the last one of each sequence sees."""
    tokens, positions = (array.reshape(-1) for array in arrays)
    live = group.slots >= 0
    tokens[group.slots[live]] = batch.tokens[live]
    positions[group.slots[live]] = batch.positions[live]
    says = np.zeros(len(batch.context_lengths), np.int64)
    for b, first, end in sequences(batch):
        start, context = int(batch.positions[first]), int(batch.context_lengths[b])
        places = np.arange(max(0, start - window + 1) if window else 0, context)
        blocks = group.block_tables[b, places // block_tokens]
        slots = blocks.astype(np.int64) * block_tokens + places % block_tokens
        np.testing.assert_array_equal(positions[slots], places)
        assert live[first:end].all()
        seen = tokens[slots].tolist()
        says[b] = greedy_token(seen[-window:] if window else seen)
    return says


def recur(batch: Batch, states: np.ndarray) -> np.ndarray:
    """Advance states, which are a count of tokens and their checksum; return each sequence's checksum."""
    says = np.zeros(len(batch.context_lengths), np.int64)
    for b, first, end in sequences(batch):
        slot, start = int(batch.state_slots[b]), int(batch.positions[first])
        count, checksum = states[slot, 0].tolist() if start else (0, STATE)
        assert count == start, "another sequence's state, or of another time"
        says[b] = checksum = zlib.crc32(bytes(batch.tokens[first:end].tolist()), checksum)
        states[slot, 0] = start + end - first, checksum
    return says


def toy_sample(logits: np.ndarray, sampling: SamplingBatch) -> Sampled:
    """Greedy, or stirred by (seed, step) and by the counts of what was generated, as ``answer`` does."""
    tokens = logits.argmax(axis=1)
    for row in range(len(tokens)):
        counts = sampling.counts[slice(*sampling.count_starts[row : row + 2])]
        tokens[row] += sum(count**2 for count in counts.tolist()) if sampling.presence_penalty[row] else 0
        if sampling.repetition_penalty[row] != 1:
            bits = np.unpackbits(sampling.seen[row].view(np.uint8), bitorder="little")
            tokens[row] += np.flatnonzero(bits).sum()
        tokens[row] += stir(sampling.seeds[row], sampling.steps[row]) if sampling.temperature[row] else 0
        if sampling.bitmask is not None:
            bits = np.unpackbits(sampling.bitmask[row].view(np.uint8), count=VOCAB, bitorder="little")
            tokens[row] = next_allowed(int(tokens[row]) % VOCAB, set(np.flatnonzero(bits).tolist()))
    return Sampled((tokens % VOCAB).astype(np.int32))


def toy_runner(sizes: CacheSizes) -> CpuRunner:
    """A runner of the toy, its cache filled with what no one wrote."""
    groups = []
    for pool in sizes.pools:
        shape = (1, pool.blocks, 1, sizes.block_tokens, 1)
        groups.append((np.full(shape, 255, np.int64), np.full(shape, -1, np.int64)))
    states = np.full((sizes.state_slots + sizes.snapshots, 1, 2), -1, np.int64)

    def copy_slot(array: np.ndarray, source: int, target: int) -> None:
        array[target] = array[source]

    cache = ModelCache(sizes.block_tokens, (), tuple(groups), (states,) * bool(sizes.states), copy_slot)
    return CpuRunner(ToyModel(sizes=sizes), cache, toy_sample)


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
        one_pool(64, 4),
        config.max_step_tokens or 512,
        config.max_concurrent or 32,
        128,
        VOCAB,
        frozenset({EOS}),
    )
    scheduler, kernels = Scheduler(limits), {"set": "toy"}
    eos = tuple(limits.eos)
    ready = Ready(limits.max_context, limits.max_concurrent, VOCAB, eos, {}, kernels, "cpu", scheduler.load)
    return Engine(scheduler, TroubledRunner(config.model, limits.cache), ready)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], toy_start))
