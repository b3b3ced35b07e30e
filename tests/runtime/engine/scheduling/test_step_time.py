"""Learned step times: what they predict, and the prompt budgets that follow."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from simulated_gpu import simulate, step_s

from wisp_plan.memory.cache import one_pool
from wisp_runtime.batch import StepKind
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.step_time import solve
from wisp_runtime.engine.transport.messages import Submit

LIMITS = Limits(
    one_pool(52_000, 16),
    max_step_tokens=8192,
    max_concurrent=32,
    max_context=131_072,
    vocab=128_256,
    target_per_token_s=0.02,
    context_work=1 / 20_000,
)


def arrivals(seconds, longest=6000, streams=8):
    rng, at_s = random.Random(1), 0.5
    requests = [(0.0, Submit(f"stream-{n}", (n,) * 100, 1 << 14, ignore_eos=True)) for n in range(streams)]
    while at_s < seconds:
        prompt = tuple(rng.choices(range(128_000), k=rng.randint(20, longest)))
        requests.append((at_s, Submit(f"prompt-{len(requests)}", prompt, 8, ignore_eos=True)))
        at_s += rng.expovariate(6.0)
    return requests


def p99_s(outcome):
    gaps = outcome.gaps_s([name for name in outcome.tokens_s if name.startswith("stream")])
    return gaps[int(0.99 * (len(gaps) - 1))]


@pytest.mark.parametrize("slowdown", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("scatter", [0.0, 0.04])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_the_target_is_met_on_slow_and_fast_devices_whose_steps_scatter(slowdown, scatter, is_deterministic):
    rng, target_s = random.Random(2), 0.02 * slowdown

    def scattered(plan):
        return slowdown * step_s(plan) * rng.lognormvariate(0.0, scatter)

    limits = replace(LIMITS, target_per_token_s=target_s, separate_prefill_decode=is_deterministic)
    outcome = simulate(make_scheduler(limits), arrivals(12), until_s=12 * slowdown, step_time=scattered)
    assert p99_s(outcome) < 1.1 * target_s


def test_a_target_that_no_step_meets_still_lets_prompts_go_on():
    limits = replace(LIMITS, target_per_token_s=0.001)
    outcome = simulate(make_scheduler(limits), arrivals(1, longest=200), until_s=20)
    assert all(times for name, times in outcome.tokens_s.items() if name.startswith("prompt"))


def test_prompts_of_long_contexts_keep_the_target_too():
    long = (0.2, Submit("long", tuple(n % 997 for n in range(60_000)), 2, ignore_eos=True))
    streams = [arrival for arrival in arrivals(0) if arrival[1].request_id.startswith("stream")]
    outcome = simulate(make_scheduler(LIMITS), [*streams, long], until_s=15)
    assert p99_s(outcome) < 0.022


def test_one_slow_step_does_not_stop_prompts_for_long():
    steps = []

    def with_a_hiccup(plan):
        steps.append(plan)
        return 2.0 if len(steps) == 400 else step_s(plan)

    outcome = simulate(make_scheduler(LIMITS), arrivals(10), until_s=10, step_time=with_a_hiccup)
    calm = simulate(make_scheduler(LIMITS), arrivals(10), until_s=10)
    answered = [sum(bool(times) for times in each.tokens_s.values()) for each in (outcome, calm)]
    assert answered[0] > 0.75 * answered[1]


@pytest.mark.parametrize(
    ("stalled", "stall_s", "longest_s"),
    [
        (1, 2.0, 7.5),  # before: 36 s, and prompts never had their share of a step again
        (12, 2.0, 2.8),  # before: 4.5
        (50, 2.0, 2.8),  # before: 5.1
    ],
)
def test_a_step_of_prompts_that_stalls_is_not_taken_for_the_usual(stalled, stall_s, longest_s):
    prefills = []

    def with_a_stall(plan):
        prefills.extend([plan] if any(chunk.kind is StepKind.PREFILL for chunk in plan) else [])
        return stall_s if len(prefills) == stalled and prefills[-1] is plan else step_s(plan)

    requests = arrivals(8)
    outcome = simulate(make_scheduler(LIMITS), requests, until_s=60, step_time=with_a_stall)
    prompts = [(at_s, request.request_id) for at_s, request in requests if request.max_tokens == 8]
    assert max(outcome.first_s(name, at_s) for at_s, name in prompts) < longest_s


def test_a_linear_system_is_solved():
    assert solve([[4.0, 1.0, 9.0], [1.0, 3.0, 5.0]]) == pytest.approx([2.0, 1.0])
