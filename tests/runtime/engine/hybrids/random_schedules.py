"""Random schedules of an engine with recurrent states, checked against answers alone, and for leaked slots.

The toy model counts the tokens of its state, so a state of another time or sequence fails at once. A schedule
is a function of its seed: caches, limits, requests that share beginnings, aborts and unsound logits.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fake_device import fake_device_runner
from toy_engine import EOS, STATE, VOCAB, answer, greedy_token, stir

from wisp_plan.memory.cache import CacheGroup, CacheSizes, Pool
from wisp_plan.spec.cache import PagedKV, State
from wisp_runtime.batch import StepKind
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Chunk, Limits, Plan, SampledToken
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

MAX_CONTEXT = 64
BEGINNINGS = ((), (1,) * 16, tuple(range(1, 11)) * 3)


@dataclass
class DirectStep:
    """A step that has ended when it is launched."""

    plan: Plan
    tokens: list[SampledToken]

    def sample(self) -> None: ...

    def sampled_tokens(self) -> list[SampledToken]:
        return self.tokens


class DirectRunner:
    """The toy without batches and arrays: each cached token with its position, each state with its count."""

    overlaps = False

    def __init__(self, sizes: CacheSizes) -> None:
        self._sizes = sizes
        self._tokens = [dict[int, tuple[int, int]]() for _ in sizes.pools]
        self._states: dict[int, tuple[int, int]] = {}

    def forward(self, plan: Plan) -> DirectStep:
        for chunk in plan:
            if chunk.restore_slot >= 0:
                self._states[chunk.sequence.cache.state_slot] = self._states[chunk.restore_slot]
        tokens = [SampledToken(self._compute(chunk)) for chunk in plan]
        for chunk in plan:
            if chunk.snapshot_slot >= 0:
                self._states[chunk.snapshot_slot] = self._states[chunk.sequence.cache.state_slot]
        sampled = [token for chunk, token in zip(plan, tokens, strict=True) if chunk.logits]
        return DirectStep(plan, sampled)

    def _compute(self, chunk: Chunk) -> int:
        cache, start, end = chunk.sequence.cache, chunk.start, chunk.start + chunk.tokens
        new, size = chunk.sequence.tokens[start:end], self._sizes.block_tokens
        count, checksum = self._states[cache.state_slot] if start else (0, STATE)
        assert count == start, "another sequence's state, or of another time"
        checksum = zlib.crc32(bytes(new), checksum)
        self._states[cache.state_slot] = end, checksum
        said = checksum
        for pool, table, known in zip(self._sizes.pools, cache.tables, self._tokens, strict=True):
            for position, token in enumerate(new, start=start):
                known[table[position // size] * size + position % size] = position, token
            window = pool.group.spec.window
            places = range(max(0, start - window + 1) if window else 0, end)
            seen = [known[table[place // size] * size + place % size] for place in places]
            assert [position for position, _ in seen] == list(places)
            tokens = [token for _, token in seen]
            said += greedy_token(tokens[-window:] if window else tokens)
        sampling = chunk.sequence.request.sampling
        return (said + (stir(sampling.seed, end) if sampling.temperature else 0)) % VOCAB


@dataclass
class Tally:
    """Counts of schedules.

    Attributes:
        wrong: requests with other tokens than alone.
        leaked_slots, leaked_snapshots, leaked_blocks: those neither free nor in a tree when nothing runs.
    """

    schedules: int = 0
    requests: int = 0
    aborted: int = 0
    tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    wrong: int = 0
    leaked_slots: int = 0
    leaked_snapshots: int = 0
    leaked_blocks: int = 0

    def add(self, other: Tally) -> None:
        """Add the counts of other schedules."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Schedule:
    """One schedule in progress."""

    seed: int
    requests: dict[str, Submit] = field(default_factory=dict)
    got: dict[str, list[int]] = field(default_factory=dict)
    finish: dict[str, str] = field(default_factory=dict)

    def run(self) -> Tally:
        """Run the schedule to its end, and count."""
        self.random = random.Random(self.seed)
        self.limits = self._limits()
        self.runner = self._runner()
        self.scheduler, self.in_flight = make_scheduler(self.limits), None
        waves = self.random.randint(1, 2)
        for _ in range(waves):
            for _ in range(self.random.randint(1, 3)):
                self._submit()
            for _ in range(self.random.randint(1, 10)):
                self._step(is_disturbed=self.random.random() < 0.08)
        while not self.scheduler.is_idle or self.in_flight:
            self._step()
        return self._tally()

    def _runner(self) -> Any:
        """Return the toy alone, or in one of ten as a device runs it, launched before the last step's end."""
        if self.random.random() < 0.9:
            return DirectRunner(self.limits.cache)
        runner = fake_device_runner(self.limits)
        runner.warm_up()
        return runner

    def _limits(self) -> Limits:
        draw = self.random
        most, tokens = draw.randint(1, 4), draw.randint(1, 4)
        windows = draw.choice([(None,), (None,), (None, 9), (7,), ()])
        pools = tuple(
            Pool(CacheGroup(PagedKV(1, 1, 1, window=window), (index,)), draw.randint(80, 180) // tokens)
            for index, window in enumerate(windows)
        )
        states = (CacheGroup(State(((2,),), ("float32",)), (2,)),)
        cache = CacheSizes(tokens, pools, states, most, draw.randint(0, 5), tokens * draw.randint(1, 2))
        is_deterministic, step_tokens = draw.random() < 0.25, draw.choice([3, 8, 24, 64])
        return Limits(
            cache=cache,
            max_step_tokens=max(step_tokens, cache.stride if is_deterministic else 0),
            max_concurrent=most,
            max_context=MAX_CONTEXT,
            vocab=VOCAB,
            eos=frozenset({EOS}),
            separate_prefill_decode=is_deterministic,
            mixed_step_tokens=draw.choice([None, 5, 16]),
        )

    def _submit(self) -> None:
        draw = self.random
        prompt = draw.choice(BEGINNINGS) + tuple(draw.choices((1, 2), k=draw.randint(1, 6)))
        if self.got and draw.random() < 0.3:  # the next turn of a conversation
            name = draw.choice(list(self.got))
            prompt = (*self.requests[name].prompt, *self.got[name], *prompt[-2:])[: MAX_CONTEXT - 8]
        request = Submit(
            f"r{len(self.requests)}",
            prompt,
            draw.randint(1, 10),
            SamplingParams(temperature=float(draw.random() < 0.5), seed=draw.randint(0, 3)),
            priority=draw.randint(-1, 1),
            ignore_eos=draw.random() < 0.5,
        )
        self.requests[request.request_id], self.got[request.request_id] = request, []
        if (refused := self.scheduler.submit(request)) is not None:
            self._take([refused])

    def _step(self, *, is_disturbed: bool = False) -> None:
        plan = self.scheduler.plan()
        self._check_division(plan)
        completed, self.in_flight = self.in_flight, self.runner.forward(plan) if plan else None
        alive = [name for name in self.requests if name not in self.finish]
        disturbed = self.random.choice(alive) if alive and is_disturbed else None
        is_abort = self.random.random() < 0.8
        if disturbed and is_abort:
            self._take([self.scheduler.abort(disturbed)])
        if self.in_flight and not self.runner.overlaps:
            self.in_flight.sample()
            completed, self.in_flight = self.in_flight, None
        if completed:
            names = [chunk.sequence.id for chunk in completed.plan if chunk.samples]
            tokens = [
                SampledToken(-1, error="spoiled") if name == disturbed and not is_abort else token
                for name, token in zip(names, completed.sampled_tokens(), strict=True)
            ]
            self._take(self.scheduler.commit(completed.plan, tokens))
        if self.in_flight:
            self.in_flight.sample()

    def _check_division(self, plan: Plan) -> None:
        """In deterministic mode a prompt's chunks meet at multiples of the stride alone."""
        if not self.limits.separate_prefill_decode:
            return
        assert sum(chunk.tokens for chunk in plan) <= self.limits.max_step_tokens
        for chunk in plan:
            if chunk.kind is StepKind.PREFILL:
                end = chunk.start + chunk.tokens
                assert chunk.start % self.limits.cache.stride == 0
                assert end % self.limits.cache.stride == 0 or end == chunk.sequence.prompt_tokens

    def _take(self, events) -> None:
        for event in events:
            if event.token is not None:
                self.got[event.request_id].append(event.token)
            if event.finish:
                self.finish[event.request_id] = event.finish

    def _tally(self) -> Tally:
        cache, load = self.scheduler.cache, self.scheduler.load
        states, wrong = cache.states, 0
        for name, request in self.requests.items():
            expected = answer(request, MAX_CONTEXT, self.limits.cache)
            if self.finish[name] in ("abort", "error", "refused"):
                expected = expected[: len(self.got[name])]
            wrong += self.got[name] != expected
        held = Counter(states._held.keys())
        references = [
            states._snapshots.ref_count(slot) - held[states.sequences + slot]
            for slot in range(states.snapshots)
        ]
        blocks = sum(
            group.pool.ref_count(block) - (block in group.nodes)
            for group in cache.groups
            for block in range(self.limits.cache.pools[group.index].blocks)
        )
        return Tally(
            schedules=1,
            requests=len(self.requests),
            aborted=sum(finish in ("abort", "error") for finish in self.finish.values()),
            tokens=sum(map(len, self.got.values())),
            steps=load.steps,
            preemptions=load.preemptions_total,
            cached_tokens=load.cached_tokens_total,
            hits=load.states.hits_total,
            misses=load.states.misses_total,
            evictions=load.states.evictions_total,
            wrong=wrong,
            leaked_slots=states.sequences - states.free,
            leaked_snapshots=sum(references),
            leaked_blocks=blocks,
        )


def run_schedules(first: int, count: int) -> Tally:
    """Run the schedules of ``count`` seeds from ``first`` on, and sum their counts."""
    total = Tally()
    for seed in range(first, first + count):
        total.add(Schedule(seed).run())
    return total
