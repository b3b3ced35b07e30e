"""The runner of a device, on one without a GPU whose work runs late (fake_device.py)."""

import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from wisp_plan.memory.cache import one_pool
from wisp_runtime.engine.execution.device_runner import warm_plans
from wisp_runtime.engine.execution.graph_cache import GraphCache
from wisp_runtime.engine.execution.runner import run_step
from wisp_runtime.engine.loop import run
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import Pooling, SamplingParams, Submit

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from fake_device import FakeStream, fake_device_runner
from mock_device import CUDARuntimeError
from scripted_channel import ScriptedChannel
from toy_engine import EOS, VOCAB, answer, greedy_token

LIMITS = Limits(one_pool(80, 4), 32, 12, 64, VOCAB, frozenset({EOS}))


def mixed_requests(count):
    return [
        Submit(
            f"r{n}",
            tuple(1 + (n * k) % 7 for k in range(1, 2 + 3 * n % 17)),
            9 + n,
            SamplingParams(
                temperature=n % 2, seed=n, presence_penalty=n % 5 == 3, logprobs=2 if n % 3 == 2 else None
            ),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("is_warm", [True, False])
def test_everyone_gets_the_tokens_they_would_get_alone(is_late, is_warm):
    runner, requests = fake_device_runner(LIMITS, is_late=is_late), mixed_requests(30)
    if is_warm:
        runner.warm_up()
    channel = ScriptedChannel(*requests)
    run(channel, Scheduler(LIMITS), runner)
    assert channel.tokens == {request.request_id: answer(request, LIMITS.max_context) for request in requests}
    assert bool(len(runner.graphs)) == is_warm


def decoding(scheduler, runner, numbers):
    """Bring greedy sequences of these numbers to decode."""
    for n in numbers:
        prompt = (1 + n % 5, 2, 3)
        scheduler.submit(Submit(f"d{n}", prompt, 40, SamplingParams(temperature=0.0), ignore_eos=True))
    while any(sequence.pending_tokens > 1 for sequence in (*scheduler.running, *scheduler.waiting)):
        plan = scheduler.plan()
        scheduler.commit(plan, run_step(runner, plan))


def test_a_bucket_is_captured_when_it_comes_again_and_replayed_from_then_on():
    runner, scheduler = fake_device_runner(LIMITS), Scheduler(LIMITS)
    runner.graphs.captures = True
    decoding(scheduler, runner, range(5))
    counts = []
    for _ in range(4):
        plan = scheduler.plan()
        scheduler.commit(plan, run_step(runner, plan))
        counts.append([recording.launches for recording in runner._stream.recordings])
    assert counts == [[], [1], [2], [3]]
    decoding(scheduler, runner, range(5, 8))  # eight: the same bucket
    plan = scheduler.plan()
    run_step(runner, plan)
    assert [recording.launches for recording in runner._stream.recordings] == [4]


def test_padding_writes_nothing_and_shifts_no_row():
    runner, scheduler = fake_device_runner(LIMITS), Scheduler(LIMITS)
    decoding(scheduler, runner, range(5))
    before = runner.forward_pass.cache.keys.copy()
    plan = scheduler.plan()
    run_step(runner, plan)
    written = np.flatnonzero(runner.forward_pass.cache.keys != before)
    slots = [chunk.sequence.cache.tables[0][chunk.start // 4] * 4 + chunk.start % 4 for chunk in plan]
    assert set(written) <= set(slots)
    assert len(runner._staging._decodes[8, False].tokens) == 8


def test_a_step_that_reads_much_of_the_cache_has_graphs_of_its_own():
    runner, scheduler = fake_device_runner(LIMITS), Scheduler(LIMITS)
    runner.graphs.captures = True
    decoding(scheduler, runner, range(5))
    tokens = sum(sequence.computed_tokens + 1 for sequence in scheduler.running)
    runner.forward_pass.persistent = SimpleNamespace(max_context_tokens=tokens + 12, takes=lambda _: False)
    seen = []
    for _ in range(6):  # each sequence grows by a token a step: three steps are short, three long
        plan = scheduler.plan()
        scheduler.commit(plan, run_step(runner, plan))
        seen.append([recording.launches for recording in runner._stream.recordings])
    assert seen == [[], [1], [2], [2], [2, 1], [2, 2]]
    long, short = (runner._staging._decodes[8, is_long] for is_long in (True, False))
    assert sum(long.context_lengths_host) > tokens + 12 >= sum(short.context_lengths_host)


def test_nothing_is_allocated_on_the_device_while_it_serves():
    runner = fake_device_runner(LIMITS)
    runner.warm_up()
    before = runner._stream.device_bytes
    run(ScriptedChannel(*mixed_requests(30)), Scheduler(LIMITS), runner)
    assert runner._stream.device_bytes == before


def test_a_step_that_samples_nothing_asks_for_no_results():
    runner, scheduler = fake_device_runner(LIMITS), Scheduler(LIMITS)
    scheduler.submit(Submit("long", (1,) * 50, 4))
    step = runner.forward(scheduler.plan())
    assert step.results is None
    assert step.sampled_tokens() == []


@pytest.mark.parametrize("most", [1, 2, 12])
def test_each_request_gets_the_log_probabilities_it_asked_for(most):
    limits = replace(LIMITS, max_concurrent=most)
    runner, scheduler = fake_device_runner(limits), Scheduler(limits)
    wanted = [20, None, 0, 3][: min(most, 4)]
    for n, logprobs in enumerate(wanted):
        params = SamplingParams(temperature=0.0, logprobs=logprobs)
        scheduler.submit(Submit(f"r{n}", (1, 2, 3 + n), 4, params))
    for token, logprobs in zip(run_step(runner, scheduler.plan()), wanted, strict=True):
        if logprobs is None:
            assert token.logprobs is None
            continue
        assert token.logprobs.chosen == -token.token
        assert token.logprobs.top == tuple((n, -n) for n in range(logprobs))


def test_the_memory_of_a_step_is_not_touched_before_the_step_is_done():
    runner, scheduler = fake_device_runner(LIMITS), Scheduler(LIMITS)
    requests = [Submit(f"r{n}", (1 + n, 2, 3), 1, SamplingParams(temperature=0.0)) for n in range(3)]
    steps = []
    for request in requests:  # none of the tokens is taken, though two at a time is what there is memory for
        alone = Scheduler(LIMITS)
        alone.submit(request)
        steps.append(runner.forward(alone.plan()))
    assert [token.token for token in steps[-1].sampled_tokens()] == answer(requests[-1], 64)
    assert scheduler.is_idle


@contextmanager
def failing(stream):
    def run(place):
        raise CUDARuntimeError

    stream.run = run
    yield


def test_an_error_of_the_device_says_what_it_means():
    runner, scheduler = fake_device_runner(LIMITS), Scheduler(LIMITS)
    scheduler.submit(Submit("a", (1, 2), 4))
    step = runner.forward(scheduler.plan())
    with failing(runner._stream), pytest.raises(Exception, match=r"running a step: .*CUDA error 700"):
        step.sampled_tokens()


@pytest.mark.parametrize(
    "limits",
    [
        LIMITS,
        Limits(one_pool(9, 4), 7, 1, 64, VOCAB),
        Limits(one_pool(1000, 16), 8192, 256, 4096, VOCAB),
        Limits(one_pool(4, 16), 512, 3, 100, VOCAB),  # less room than a step has tokens
        Limits(one_pool(64, 16), 8, 200, 100, VOCAB),  # fewer tokens than sequences
    ],
    ids=str,
)
def test_warming_up_reaches_every_size_and_no_further(limits):
    largest, *buckets = warm_plans(limits)
    room = limits.max_running * min(
        limits.max_context - 1, limits.cache.pools[0].blocks * limits.block_tokens
    )
    assert sum(chunk.tokens for chunk in largest) == min(limits.max_step_tokens, room)
    assert len(largest) == limits.max_running
    assert [len(plan) for plan in buckets] == sorted({len(plan) for plan in buckets}, reverse=True)
    assert (len(buckets[0]), len(buckets[-1])) == (limits.max_running, 1)
    for chunk in largest:
        assert chunk.tokens < limits.max_context
        assert max(chunk.sequence.cache.tables[0]) < limits.cache.pools[0].blocks


def test_what_fails_while_it_is_captured_is_not_kept():
    stream = FakeStream()
    graphs = GraphCache(stream)
    graphs.captures = True
    graphs.run("key", lambda: None)
    with pytest.raises(ZeroDivisionError):
        graphs.run("key", lambda: 1 / 0)
    assert len(graphs) == 0


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("separates", [False, True])
def test_prompts_that_are_pooled_get_their_vectors_beside_others_that_decode(is_late, separates):
    limits = replace(
        LIMITS, poolings=frozenset({"last", "logits"}), separate_prefill_decode=separates, max_step_tokens=16
    )
    runner, requests = fake_device_runner(limits, is_late=is_late), mixed_requests(20)
    runner.warm_up()
    kinds = [Pooling("last"), Pooling("logits", tuple(range(8)))]
    pooled = [
        Submit(f"p{n}", (1, 2, 3, 4, 5, 1 + n // 8 % 5)[: 1 + n % 6] * (1 + n % 3), 1, pooling=kinds[n % 2])
        for n in range(40)
    ]
    mixed = [request for pair in zip(pooled, requests * 2, strict=True) for request in pair]
    requests = list({request.request_id: request for request in mixed}.values())
    channel = ScriptedChannel(*requests)
    run(channel, make_scheduler(limits), runner)
    vectors = {event.request_id: event.pooled for event in channel.events if event.pooled is not None}
    assert vectors.keys() == {request.request_id for request in pooled}
    for request in requests:
        tokens = list(request.prompt)
        if request.pooling is None:
            assert channel.tokens[request.request_id] == answer(request, limits.max_context)
        elif request.pooling.kind == "last":
            vector = np.frombuffer(vectors[request.request_id], np.float32).tolist()
            assert vector == [greedy_token(tokens), len(tokens)]
        else:
            vector = np.frombuffer(vectors[request.request_id], np.float32).tolist()
            assert vector == [float(token == greedy_token(tokens)) for token in range(8)]


def test_a_prompt_of_one_token_that_is_pooled_takes_no_step_made_for_decodes():
    limits = replace(LIMITS, poolings=frozenset({"last"}))
    runner = fake_device_runner(limits)
    runner.warm_up()
    channel = ScriptedChannel(Submit("p", (5,), 1, pooling=Pooling("last")))
    run(channel, Scheduler(limits), runner)
    assert np.frombuffer(channel.events[0].pooled, np.float32).tolist() == [greedy_token([5]), 1]
