"""Invariants of the engine under any order of arrivals, aborts, preemptions, hits and failures."""

import sys
from collections import Counter
from operator import le
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wisp_plan.memory.cache import CacheGroup, CacheSizes, Pool
from wisp_plan.spec.cache import PagedKV, State
from wisp_runtime.batch import StepKind
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits, SampledToken
from wisp_runtime.engine.scheduling.sequence import Status
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from fake_device import fake_device_runner
from toy_engine import EOS, VOCAB, answer, toy_rule, toy_runner

MAX_CONTEXT = 40


@st.composite
def caches(draw, max_concurrent):
    """Up to two paged groups, and a state or none; mostly one group alone."""
    windows = draw(st.lists(st.none() | st.integers(1, 12), min_size=1, max_size=2))
    pools = tuple(
        Pool(CacheGroup(PagedKV(1, 1, 1, window=window), (index,)), draw(st.integers(3, 24)))
        for index, window in enumerate(windows)
    )
    states = (CacheGroup(State(((2,),), ("float32",)), (2,)),) if draw(st.booleans()) else ()
    pools = pools if draw(st.integers(0, 9)) or not states else ()
    slots = (max_concurrent, draw(st.integers(0, 4))) if states else (0, 0)
    block_tokens, strides = draw(st.integers(1, 5)), draw(st.integers(1, 3)) if states else 0
    return CacheSizes(block_tokens, pools, states, *slots, strides * block_tokens)


@st.composite
def limits(draw, caches=caches):
    max_concurrent, is_deterministic = draw(st.integers(1, 6)), draw(st.booleans())
    cache = draw(caches(max_concurrent))
    least = cache.stride if is_deterministic and cache.states else 1  # FitRequest refuses steps of less
    return Limits(
        cache=cache,
        max_step_tokens=draw(st.integers(least, 24)),
        max_concurrent=max_concurrent,
        max_context=MAX_CONTEXT,
        vocab=VOCAB,
        eos=frozenset({EOS}),
        reuses_prefixes=draw(st.booleans()),
        separate_prefill_decode=is_deterministic,
        mixed_step_tokens=draw(st.none() | st.integers(1, 24)),
        max_waiting=draw(st.sampled_from([2, 1000])),
        target_per_token_s=draw(st.sampled_from([None, 0.0001, 0.01])),
        target_first_token_s=draw(st.sampled_from([None, 0.0001, 0.01])),
        context_work=draw(st.sampled_from([0.0, 0.5])),
    )


@st.composite
def submits(draw):
    # Few distinct tokens and shared beginnings make hits, copies and near misses common.
    prompt = draw(st.sampled_from([(), (1, 1, 1, 1, 1, 1), (1, 1, 1, 2, 3, 4, 5, 6, 7, 8)]))
    prompt += tuple(draw(st.lists(st.integers(1, 2), min_size=0 if prompt else 1, max_size=12)))
    rule = draw(st.sampled_from([None, None, None, "thirds", "fails"]))
    sampled, penalised = draw(st.booleans()), draw(st.integers(0, 5)) == 0
    return {
        "prompt": prompt,
        "max_tokens": draw(st.integers(1, 16)),
        "priority": draw(st.integers(-1, 1)),
        "choice": draw(st.sampled_from([0, 0, 1, 2])),
        "ignore_eos": draw(st.booleans()),
        "stop_token_ids": draw(st.sampled_from([(), (3,)])),
        "cache_salt": draw(st.sampled_from([0, 0, 1 << 100])),
        "use_prefix_cache": draw(st.integers(0, 3)) > 0,
        "constraint": rule,
        "sampling": SamplingParams(
            temperature=float(sampled), seed=draw(st.integers(0, 3)), presence_penalty=float(penalised)
        ),
    }


def upwards(node):
    """Yield a node and those above it."""
    while node is not None:
        yield node
        node = node.parent


def tokens_of(node):
    """Return the tokens on the path to a node; the root of a salt holds none."""
    return sum(len(each.tokens) for each in upwards(node) if each.tokens and each.tokens[0] >= 0)


def nearest_above(states, node):
    """Return the nearest snapshot above a node."""
    return next((states._held[each.snapshot] for each in upwards(node.parent) if each.snapshot >= 0), None)


class EngineMachine(RuleBasedStateMachine):
    """Drives scheduler, packing and runner, and keeps its own account of everything.

    The runner computes each step at once; or it is a device's, and a step is planned and its forward pass
    launched before the tokens of the one before are taken.
    """

    answer = staticmethod(answer)

    @initialize(limits=limits(), runner=st.sampled_from(["cpu", "prompt device", *2 * ["late device"]]))
    def begin(self, limits, runner):
        if runner == "cpu":
            self.begin_with(limits, toy_runner(limits.cache))
        else:
            self.begin_with(limits, fake_device_runner(limits, is_late=runner == "late device"))

    def begin_with(self, limits, runner):
        self.limits, self.runner = limits, runner
        self.scheduler = make_scheduler(limits)
        if runner.overlaps:
            runner.warm_up()
        self.in_flight = None
        self.requests, self.got, self.finish = {}, {}, {}
        self.compiling = []
        self.spoiled = set()

    def take(self, events):
        for event in events:
            assert event is not None
            assert event.request_id not in self.finish, "news of a request that had ended"
            if event.token is not None:
                self.got[event.request_id].append(event.token)
            if event.finish:
                self.finish[event.request_id] = event.finish

    @rule(fields=submits(), copies=st.sampled_from([1, 1, 1, 3]), is_compiled_late=st.booleans())
    def submit(self, fields, copies, is_compiled_late):
        for _ in range(copies):
            request = Submit(f"r{len(self.requests)}", **fields)
            self.requests[request.request_id] = request
            self.got[request.request_id] = []
            waits = is_compiled_late and request.constraint is not None
            refused = self.scheduler.submit(request, constraint=None if waits else toy_rule(request))
            if waits and not (refused and refused.request_id == request.request_id):
                self.compiling.append(request)
            length = min(len(request.prompt) + request.max_tokens, MAX_CONTEXT)
            sizes, step = self.limits.cache, self.limits.max_step_tokens
            at_a_time = sizes.sequences(max(1, length - 1), step)
            is_sound = refused is None or refused.finish == "overloaded"
            assert is_sound == (at_a_time is None or at_a_time > 0)
            self.take([refused] if refused else [])

    @precondition(lambda self: self.compiling)
    @rule(data=st.data(), compiles=st.integers(0, 5))
    def compile(self, data, compiles):
        request = self.compiling.pop(data.draw(st.integers(0, len(self.compiling) - 1)))
        if request.request_id not in self.finish:
            rule = toy_rule(request) if compiles else "it does not compile"
            event = self.scheduler.constrain(request.request_id, rule)
            self.take([event] if event else [])

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def abort(self, data):
        self.take([self.scheduler.abort(data.draw(st.sampled_from(self.alive())))])

    @rule()
    def abort_one_that_is_unknown(self):
        assert self.scheduler.abort("nobody") is None

    @precondition(lambda self: not self.scheduler.is_idle)
    @rule(data=st.data())
    def step_with_an_abort_meanwhile(self, data):
        self.step(aborted=data.draw(st.sampled_from(self.alive())))

    @precondition(lambda self: not self.scheduler.is_idle)
    @rule(data=st.data())
    def step_with_unsound_logits(self, data):
        self.step(spoiled=data.draw(st.sampled_from(self.alive())))

    @rule(steps=st.integers(1, 5))
    def run(self, steps):
        for _ in range(steps):
            if self.in_flight or not self.scheduler.is_idle:
                self.step()

    def alive(self):
        return [name for name in self.requests if name not in self.finish]

    def step(self, aborted=None, spoiled=None):
        plan = self.scheduler.plan()
        self.check_plan(plan)
        completed, self.in_flight = self.in_flight, self.runner.forward(plan) if plan else None
        if aborted:
            self.take([self.scheduler.abort(aborted)])
        if self.in_flight and not self.runner.overlaps:
            self.in_flight.sample()
            completed, self.in_flight = self.in_flight, None
        if completed:
            sampling = [chunk.sequence.id for chunk in completed.plan if chunk.samples]
            tokens = [
                SampledToken(-1, error="spoiled") if name == spoiled else token
                for name, token in zip(sampling, completed.sampled_tokens(), strict=True)
            ]
            self.scheduler.observe(completed.plan, 1e-4 * sum(chunk.tokens for chunk in completed.plan))
            self.take(self.scheduler.commit(completed.plan, tokens))
        if self.in_flight:
            self.in_flight.sample()

    def check_plan(self, plan):
        assert plan or self.in_flight or self.scheduler.is_idle, "requests are here and nothing runs"
        assert sum(chunk.tokens for chunk in plan) <= self.limits.max_step_tokens
        if self.limits.separate_prefill_decode:
            assert len({chunk.kind for chunk in plan}) <= 1, "a mixed step"
            assert all((c.kind is StepKind.DECODE) == (c.start >= c.sequence.prompt_tokens) for c in plan)
            assert all(c.start + c.tokens <= max(c.sequence.prompt_tokens, c.start + 1) for c in plan)
            shared = [
                sequence.cache.cached_blocks * self.limits.block_tokens for sequence in self.scheduler.running
            ]
            prompts = [sequence.prompt_tokens for sequence in self.scheduler.running]
            assert all(map(le, shared, prompts)), "generated tokens in the prefix cache"
        assert len({chunk.sequence.id for chunk in plan}) == len(plan)
        assert len(self.scheduler.running) <= self.limits.max_concurrent
        for chunk in plan:
            self.check_chunk(chunk)

    def check_chunk(self, chunk):
        sequence, start, end = chunk.sequence, chunk.start, chunk.start + chunk.tokens
        assert chunk.tokens >= 1
        assert chunk.logits == chunk.max_new_tokens
        assert chunk.kind is StepKind.PREFILL or chunk.tokens == 1
        assert start == sequence.computed_tokens
        assert chunk.samples == (end == sequence.length)
        assert end < sequence.max_length, "computes what nothing comes after"
        is_known = start < len(sequence.tokens)
        assert is_known or (chunk.tokens == 1 and self.in_flight), "a token that no step samples"
        size = self.limits.block_tokens
        assert sequence.cache.cached_blocks * size <= start, "writes what may be found in the prefix cache"
        for group, table in zip(self.scheduler.cache.groups, sequence.cache.tables, strict=True):
            written = table[start // size : (end - 1) // size + 1]
            assert len(written) == (end - 1) // size + 1 - start // size, "writes beyond its blocks"
            counts = [group.pool.ref_count(block) for block in written]
            assert counts == [1] * len(written), "writes a shared block"

    @invariant()
    def every_block_is_accounted_for(self):
        if not hasattr(self, "scheduler"):
            return
        for group in self.scheduler.cache.groups:
            index, pool = group.index, group.pool
            caches = [sequence.cache for sequence in self.scheduler.running]
            used = [cache.tables[index][cache.begins[index] :] for cache in caches]
            assert all(len(set(blocks)) == len(blocks) for blocks in used)
            room = self.limits.cache.pools[index].group.sequence_blocks
            most = room(MAX_CONTEXT, self.limits.block_tokens, self.limits.max_step_tokens)
            assert all(len(blocks) <= most for blocks in used), "more than the ledger counts"
            held = Counter(block for blocks in used for block in blocks)
            evictable = sum(1 for block in group.nodes if block not in held)
            for block in range(pool.blocks):
                assert pool.ref_count(block) == held[block] + (block in group.nodes)
            assert group.available == pool.blocks - len(held)
            assert len(group.evictable) == evictable
        assert not any(sequence.cache.covered_tokens for sequence in self.scheduler.waiting)

    @invariant()
    def every_state_slot_is_accounted_for(self):
        if not hasattr(self, "scheduler") or not self.limits.cache.states:
            return
        states, running = self.scheduler.cache.states, [sequence.cache for sequence in self.scheduler.running]
        slots = [cache.state_slot for cache in running]
        assert len(set(slots)) == len(slots) == self.limits.cache.state_slots - states.free
        assert min(slots, default=0) >= 0
        used = Counter(slot for cache in running for slot in cache.snapshots.values())
        used += Counter(cache.restore_slot for cache in running if cache.restore_slot >= 0)
        used += Counter(states._held.keys())
        for slot, snapshot in states._held.items():
            assert snapshot.node.snapshot == slot
            assert snapshot.tokens == tokens_of(snapshot.node)
            assert snapshot.base is nearest_above(states, snapshot.node)
        for slot in range(self.limits.cache.snapshots):
            assert states._snapshots.ref_count(slot) == used[self.limits.cache.state_slots + slot]

    @invariant()
    def the_queues_are_in_rank_order(self):
        if not hasattr(self, "scheduler"):
            return
        for queue in (self.scheduler.running, self.scheduler.waiting):
            assert [sequence.priority_key for sequence in queue] == sorted(
                sequence.priority_key for sequence in queue
            )
        late = self.scheduler.waiting.compiling
        assert {s.id for s in late} == {r.request_id for r in self.compiling} - set(self.finish)
        assert {sequence.status for sequence in self.scheduler.running} <= {Status.RUNNING}
        assert {sequence.status for sequence in self.scheduler.waiting} <= {Status.WAITING, Status.PREEMPTED}

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        # Each step computes a token at least; preemption may undo some, but never of the first in line.
        for request in self.compiling:
            if request.request_id not in self.finish:
                self.scheduler.constrain(request.request_id, toy_rule(request))
        for _ in range(10_000):
            if self.scheduler.is_idle and not self.in_flight:
                break
            self.step()
        assert self.scheduler.is_idle, "a request never ended"
        assert not self.alive()
        for name, request in self.requests.items():
            expected = self.answer(request, MAX_CONTEXT, self.limits.cache)
            if self.finish[name] in ("abort", "error", "refused", "overloaded"):
                expected = expected[: len(self.got[name])]
            assert self.got[name] == expected, f"{name} got other tokens than alone"
        self.every_block_is_accounted_for()
        assert self.scheduler.load.kv_blocks_used == 0


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
