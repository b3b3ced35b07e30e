"""No request keeps a stranger waiting, by the H200's step times; numbers before are of c5be5c6."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from simulated_gpu import simulate
from test_scheduler import LIMITS, limits_of, run, scheduler, shape, submit

from wisp_plan.memory.cache import one_pool
from wisp_plan.presets import shape_spec
from wisp_runtime.engine.scheduling import scheduler as scheduler_module
from wisp_runtime.engine.scheduling import waiting_queue
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.step_budget import MIN_PROMPT_TOKENS, Prefill, PromptBudget, share_out
from wisp_runtime.engine.startup import context_work
from wisp_runtime.engine.transport.messages import Submit

H200 = Limits(
    one_pool(52_000, 16),  # 102 GiB for a Llama-3-8B
    max_step_tokens=8192,
    max_concurrent=32,
    max_context=131_072,
    vocab=128_256,
    mixed_step_tokens=2048,
    context_work=context_work(shape_spec("llama-3-8b")),
)


def prompt(tokens, seed):
    return tuple(random.Random(seed).choices(range(128_000), k=tokens))


def request(name, tokens, max_tokens, seed=0, **fields):
    return Submit(name, prompt(tokens, seed), max_tokens, ignore_eos=True, **fields)


def choices(name, n, tokens, max_tokens):
    same = prompt(tokens, name)
    return [Submit(f"{name}-{k}", same, max_tokens, ignore_eos=True, choice=k) for k in range(n)]


def engine(*, is_deterministic=False, **limits):
    return make_scheduler(replace(H200, separate_prefill_decode=is_deterministic, **limits))


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_a_stranger_does_not_wait_behind_all_choices_of_a_request(is_deterministic):
    many = [(0.0, choice) for choice in choices("many", 128, 50, 4096)]
    outcome = simulate(
        engine(is_deterministic=is_deterministic), [*many, (1.0, request("stranger", 20, 10))], until_s=3.0
    )
    assert outcome.first_s("stranger", 1.0) < 0.1  # before: 106 s


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_a_short_prompt_does_not_wait_behind_long_ones(is_deterministic):
    long = [(0.0, request(f"long-{n}", 120_000, 10, seed=n)) for n in range(4)]
    outcome = simulate(
        engine(is_deterministic=is_deterministic), [*long, (0.5, request("stranger", 50, 10, seed=9))]
    )
    assert outcome.first_s("stranger", 0.5) < 1.0  # before: 41.7 s, 11.2 s by costs without attention


def generated(outcome, prefix, until_s):
    """Tokens that the requests of a prefix had by ``until_s``."""
    named = (times for name, times in outcome.tokens_s.items() if name.startswith(prefix))
    return sum(time_s <= until_s for times in named for time_s in times)


def test_others_lose_little_throughput_to_strangers_who_are_let_in():
    many = [(0.0, choice) for choice in choices("many", 128, 50, 1024)]
    strangers = [(0.1 * n, request(f"stranger-{n}", 50, 10, seed=n)) for n in range(1, 100)]
    alone = simulate(engine(), many, until_s=10)
    beside = simulate(engine(), sorted([*many, *strangers], key=lambda arrival: arrival[0]), until_s=10)
    assert generated(beside, "many", 10) > 0.9 * generated(alone, "many", 10)


def test_a_prompt_at_the_end_of_a_long_context_does_not_make_steps_long():
    stream = request("stream", 20, 4000)
    outcome = simulate(engine(), [(0.0, stream), (0.1, request("long", 120_000, 2, seed=1))], until_s=30)
    assert max(outcome.gaps_s(["stream"])) < 0.1  # before: 0.3 s


def test_a_target_per_token_bounds_the_gaps_of_streams_beside_any_mixture_of_prompts():
    scheduler = engine(target_per_token_s=0.02)
    streams = [(0.0, request(f"stream-{n}", 64, 3000, seed=n)) for n in range(8)]
    prompts = [
        (1.0 + 0.4 * n, request(f"prompt-{n}", 50 if n % 2 else 1500 + 400 * n, 20, seed=99 + n))
        for n in range(40)
    ]
    outcome = simulate(scheduler, [*streams, *prompts], until_s=60)
    gaps = outcome.gaps_s([f"stream-{n}" for n in range(8)])
    assert gaps[int(0.99 * len(gaps))] < 0.022  # without: 0.048
    durations = sorted(outcome.durations_s)
    assert durations[len(durations) // 2] > 0.014, "a step takes as many prompt tokens as fit"


def test_a_target_of_the_first_token_shortens_steps_of_prompts_alone():
    scheduler = engine(target_first_token_s=0.3)
    prompts = [(0.0, request(f"long-{n}", 30_000, 1, seed=n)) for n in range(4)]
    outcome = simulate(scheduler, [*prompts, (2.0, request("stranger", 20, 1, seed=9))])
    assert outcome.first_s("stranger", 2.0) < 0.3


def shares_of(*prefills, budget):
    return share_out([Prefill(*prefill) for prefill in prefills], budget)


@pytest.mark.parametrize(
    ("pending", "tokens", "expect"),
    [
        ([], 8, []),
        ([3, 3, 3], 8, [3, 3, 2]),  # alike: in order
        ([100], 8, [8]),
        ([100, 100], 8, [8, 0]),
        ([100, 2], 8, [6, 2]),  # a short prompt beside a long one goes first
        ([100, 25], 8, [4, 4]),  # within half of the step
        ([100, 26], 8, [8, 0]),  # not a quarter: not short
        ([100, 25, 3], 8, [4, 1, 3]),  # the shortest first
        ([100, 100, 3], 8, [5, 0, 3]),
        ([3, 100, 3], 8, [3, 5, 0]),  # the first is short itself: in order
    ],
)
def test_short_prompts_get_a_share_beside_a_long_one(pending, tokens, expect):
    assert shares_of(*[(0, each) for each in pending], budget=PromptBudget(tokens)) == expect


@pytest.mark.parametrize(
    ("start", "work", "expect"),
    [
        (0, 150.0, 100),  # 100 tokens, and half of their pairs
        (100, 250.0, 100),  # each costs twice as much
        (9900, 100.0, MIN_PROMPT_TOKENS),  # one would fit, and some are always computed
        (0, 0.0, MIN_PROMPT_TOKENS),
        (0, 1e9, 200),
    ],
)
def test_tokens_of_a_long_context_weigh_more(start, work, expect):
    budget = PromptBudget(200, work, context_work=0.01)
    assert budget.grant(start, 999) == expect
    assert not budget.is_open


def test_a_waiting_sequence_takes_the_place_of_one_that_ranks_behind_it():
    engine = scheduler(max_concurrent=2)
    submit(engine, "a-0", 3)
    submit(engine, "a-1", 3, choice=1)
    run(engine)
    submit(engine, "b", 3, first=20)
    assert run(engine) == [[("a-0*", 3, 1), ("b*", 0, 3)]]
    assert [sequence.id for sequence in engine.waiting] == ["a-1"]
    assert engine.load.preemptions_total == 1


def test_choices_of_two_requests_take_places_in_turn():
    engine = scheduler(max_concurrent=4)
    for name in "ab":
        for k in range(4):
            submit(engine, f"{name}-{k}", 2, choice=k)
    run(engine)
    assert sorted(sequence.id for sequence in engine.running) == ["a-0", "a-1", "b-0", "b-1"]


def test_a_higher_priority_takes_the_place_of_a_lower_one():
    engine = scheduler(max_concurrent=1)
    submit(engine, "batch", 3, priority=1)
    run(engine)
    submit(engine, "urgent", 3, max_tokens=1, first=20)
    assert run(engine, 2) == [[("urgent*", 0, 3)], [("batch*", 0, 4)]]


def test_a_short_sequence_overtakes_a_long_one_that_waits_only_so_often(monkeypatch):
    monkeypatch.setattr(scheduler_module, "PRIORITY_BOOST", 2)
    engine = scheduler(blocks=6, max_step_tokens=64)
    submit(engine, "running", 12, max_tokens=9)
    run(engine)
    submit(engine, "big", 12, max_tokens=1, first=20)
    for n in range(3):
        submit(engine, f"small-{n}", 1, max_tokens=1, first=30 + n)
    names = [name for step in run(engine, 9) for name, _, _ in step]
    assert [name for name in names if name != "running*"] == ["small-0*", "small-1*", "big*", "small-2*"]


def test_a_place_is_left_for_a_long_prompt_that_waits():
    engine = scheduler(max_concurrent=3, max_step_tokens=8)
    submit(engine, "long", 40, max_tokens=1)
    submit(engine, "next", 40, max_tokens=1, first=2)
    for n in range(4):
        submit(engine, f"short-{n}", 2, first=30 + 2 * n)
    run(engine)
    assert [sequence.id for sequence in engine.running] == ["long", "short-0", "short-1"]
    assert engine.waiting[0].id == "next"


def test_more_than_may_wait_are_refused_the_last_in_line_first():
    engine = scheduler(max_concurrent=1, max_waiting=2)
    submit(engine, "runs", 2)
    run(engine)
    assert submit(engine, "a-0", 2) is None
    assert submit(engine, "a-1", 2, choice=1) is None
    event = submit(engine, "stranger", 2)
    assert (event.request_id, event.finish, event.token) == ("a-1", "overloaded", None)
    event = submit(engine, "late", 2)
    assert (event.request_id, event.finish) == ("late", "overloaded")
    assert [sequence.id for sequence in engine.waiting] == ["a-0", "stranger"]


def test_prompts_that_wait_have_so_many_tokens_each_counted_once(monkeypatch):
    monkeypatch.setattr(waiting_queue, "MAX_WAITING_TOKENS", 20)
    engine = scheduler(max_concurrent=1)
    submit(engine, "runs", 2)
    run(engine)
    shared = tuple(range(1, 16))
    assert [submit(engine, f"a-{k}", shared, choice=k) for k in range(4)] == [None] * 4
    assert submit(engine, "small", 5) is None
    assert submit(engine, "b", 1).request_id == "b"  # dropping the last choice would make no space
    for k in range(4):
        engine.abort(f"a-{k}")
    assert submit(engine, "c", 15) is None
    assert submit(engine, "urgent", 6, priority=-1).request_id == "c"  # the last in line
    assert [sequence.id for sequence in engine.waiting] == ["urgent", "small"]


def test_choices_that_wait_share_their_prompt():
    engine = scheduler(max_concurrent=1)
    prompt = (1, 2, 3)
    for k in range(3):
        engine.submit(Submit(f"a-{k}", prompt, 9, choice=k))
    run(engine)
    assert all(sequence.tokens is prompt for sequence in engine.waiting)
    assert engine.running[0].tokens == [1, 2, 3, 7]


def test_a_preempted_sequence_is_never_refused():
    engine = scheduler(max_concurrent=1, max_waiting=1)
    submit(engine, "batch", 2, priority=1)
    run(engine)
    submit(engine, "urgent", 2, first=20)
    run(engine)
    assert submit(engine, "waits", 2) is None
    assert submit(engine, "refused", 2).request_id == "refused"


def test_a_request_that_has_not_started_in_time_is_given_up_but_not_its_further_choices():
    engine = make_scheduler(limits_of(**(LIMITS | {"max_concurrent": 1, "max_queue_wait_s": 5.0})))
    engine.submit(Submit("runs", (1, 2), 30), 0.0)
    engine.submit(Submit("runs-1", (1, 2), 30, choice=1), 0.0)
    run(engine)
    engine.submit(Submit("waits", (3, 4), 30), 1.0)
    assert engine.expire(5.9) == []
    assert [(event.request_id, event.finish) for event in engine.expire(6.0)] == [("waits", "expired")]
    assert engine.expire(99.0) == []
    assert [sequence.id for sequence in engine.waiting] == ["runs-1"]


def test_the_choices_of_a_prompt_are_checked_once(monkeypatch):
    checked = []
    original = scheduler_module.prompt_refusal
    monkeypatch.setattr(
        scheduler_module,
        "prompt_refusal",
        lambda prompt, *others: checked.append(prompt) or original(prompt, *others),
    )
    engine = scheduler()
    prompt = (1, 2, 3)
    for k in range(4):
        engine.submit(Submit(f"a-{k}", prompt, 9, choice=k))
    assert len(checked) == 1


def test_a_sequence_gives_up_its_place_only_if_that_makes_enough_space():
    engine = scheduler(blocks=8, max_step_tokens=64)
    submit(engine, "holds", 12, max_tokens=15)
    submit(engine, "batch", 3, priority=1, first=20)
    run(engine)
    submit(engine, "big", 24, max_tokens=1, first=20)
    steps = run(engine, 5)
    assert [[name for name, _, _ in step] for step in steps] == [["holds*", "batch*"]] * 5
    assert engine.load.preemptions_total == 0


def test_a_short_sequence_that_overtook_one_gives_its_place_to_none_behind_that_one():
    engine = scheduler(max_concurrent=3, max_step_tokens=8)
    for n in range(3):
        submit(engine, f"long-{n}", 40, first=n)
    submit(engine, "short", 2, first=40)
    run(engine, 16)
    assert [sequence.id for sequence in engine.running] == ["long-0", "short", "long-1"]
    assert engine.load.preemptions_total == 0


def test_a_short_prompt_takes_the_last_place_beside_a_long_one():
    engine = scheduler(max_concurrent=2, max_step_tokens=8)
    submit(engine, "long", 40)
    run(engine)
    submit(engine, "short", 2, first=30)
    assert run(engine) == [[("long", 8, 6), ("short*", 0, 2)]]


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_prompts_are_not_admitted_for_the_crumbs_of_a_step(is_deterministic):
    long = [(0.0, request(f"long-{n}", 20_000, 10, seed=n)) for n in range(12)]
    scheduler = engine(is_deterministic=is_deterministic, max_concurrent=8)
    outcome = simulate(scheduler, [*long, (1.0, request("stranger", 50, 10, seed=99))])
    assert outcome.first_s("stranger", 1.0) < 0.3  # before: all places were taken


def test_a_short_prompt_goes_on_beside_a_long_one_under_a_target_that_no_step_meets():
    streams = [(0.0, request(f"stream-{n}", 50, 1000, seed=n)) for n in range(8)]
    scheduler = engine(target_per_token_s=0.003)
    later = [(1.0, request("long", 60_000, 5, seed=8)), (2.0, request("stranger", 50, 10, seed=9))]
    outcome = simulate(scheduler, [*streams, *later], until_s=4)
    assert outcome.first_s("stranger", 2.0) < 0.1  # before: after the long prompt


def test_a_preempted_sequence_has_its_first_token_and_is_not_late():
    limits = {"max_concurrent": 2, "max_step_tokens": 32, "mixed_step_tokens": 8, "target_first_token_s": 1.0}
    engine = make_scheduler(limits_of(**(LIMITS | limits)))
    engine.submit(Submit("stream", (1, 2, 3), 20, priority=-1), 0.0)
    engine.submit(Submit("batch", tuple(range(20)), 20, priority=1, use_prefix_cache=False), 0.0)
    run(engine)
    engine.submit(Submit("urgent", (4, 5), 1, priority=-1), 9.0)
    run(engine)
    assert shape(engine.plan(9.0)) == [("stream*", 4, 1), ("batch", 0, 7)]


def test_choices_that_start_at_once_do_not_wait():
    idle = engine(max_concurrent=2, max_waiting=2)
    refused = [idle.submit(choice) is not None for choice in choices("r", 5, 20, 8)]
    assert refused == [False, False, False, False, True], "two run, two wait"
