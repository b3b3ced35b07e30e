"""Deterministic mode's rules of scheduling; what they add up to is in test_engine_properties.py."""

import pytest
from test_scheduler import LIMITS, limits_of, overlap, run, submit

from wisp_plan.memory.cache import CacheGroup, CacheSizes, Pool
from wisp_plan.spec.cache import PagedKV, State
from wisp_runtime.batch import StepKind
from wisp_runtime.engine.scheduling.deterministic import DeterministicScheduler, make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits, SampledToken
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import SamplingParams


def scheduler(**limits):
    return make_scheduler(limits_of(**(LIMITS | {"separate_prefill_decode": True} | limits)))


@pytest.mark.parametrize(
    ("separate_prefill_decode", "kind"), [(True, DeterministicScheduler), (False, Scheduler)]
)
def test_the_limits_say_which_scheduler(separate_prefill_decode, kind):
    assert type(scheduler(separate_prefill_decode=separate_prefill_decode)) is kind


def test_prompts_and_generated_tokens_take_turns():
    engine = scheduler()
    submit(engine, "a", 3)
    assert run(engine) == [[("a*", 0, 3)]]
    submit(engine, "b", 12)
    assert run(engine, 5) == [
        [("a*", 3, 1)],  # after a step of prompts
        [("b", 0, 8)],
        [("a*", 4, 1)],
        [("b*", 8, 4)],
        [("a*", 5, 1), ("b*", 12, 1)],
    ]


def test_a_prompt_that_ends_with_a_single_token_is_still_a_step_of_prompts():
    engine = scheduler()
    submit(engine, "a", 9)
    kinds = []
    for _ in range(3):
        plan = engine.plan()
        kinds += [(chunk.kind, chunk.start, chunk.tokens) for chunk in plan]
        engine.commit(plan, [SampledToken(7)] * sum(chunk.samples for chunk in plan))
    assert kinds == [(StepKind.PREFILL, 0, 8), (StepKind.PREFILL, 8, 1), (StepKind.DECODE, 9, 1)]


def test_a_step_of_prompts_is_short_where_sequences_wait_to_decode():
    engine = scheduler(max_step_tokens=8, mixed_step_tokens=4)
    submit(engine, "a", 3)
    run(engine)
    submit(engine, "b", 8)
    assert run(engine, 2)[1] == [("b", 0, 4)]


def test_a_preempted_sequence_feeds_what_it_had_generated_again_one_by_one():
    engine = scheduler(blocks=5, max_concurrent=2, reuses_prefixes=False)
    submit(engine, "a", 6, max_tokens=13)
    submit(engine, "b", 5, max_tokens=9, first=20)
    shapes = run(engine, 40)
    flat = [chunk for plan in shapes for chunk in plan if chunk[0].startswith("b")]
    sampled = [start for name, start, _ in flat if name == "b*"]
    assert len(sampled) == 9, "each token is sampled once"
    again = [chunk for chunk in flat if chunk[0] == "b" and chunk[1] >= 5]
    assert again, "no sequence was preempted"
    assert all(tokens == 1 for _, _, tokens in again)
    prompts = [chunk for chunk in flat if chunk[1] < 5]
    assert prompts == [("b", 0, 2), ("b*", 2, 3), ("b", 0, 5)], "sampled at its end once, and not again"
    assert engine.load.preemptions_total == 1


def test_only_prompts_enter_the_prefix_cache():
    engine = scheduler()
    submit(engine, "a", 6, max_tokens=8)
    run(engine, 12)
    tokens = (*range(1, 7), *[7] * 8)  # a, and all it said
    submit(engine, "b", tokens, max_tokens=2)
    (first,) = run(engine)
    assert first == [("b", 4, 8)], "a's first block, which is all prompt, and no other"


def hybrid(**limits):
    """A scheduler of a model with one attention layer and one of recurrent state, in chunks of 16 tokens."""
    attention, state = CacheGroup(PagedKV(1, 1, 1), (0,)), CacheGroup(State(((2,),), ("float32",)), (1,))
    cache = CacheSizes(4, (Pool(attention, 60),), (state,), 4, 4, snapshot_tokens=16)
    shared = {"max_step_tokens": 40, "max_concurrent": 4, "max_context": 200, "vocab": 100}
    return make_scheduler(Limits(cache, **(shared | limits), separate_prefill_decode=True))


def test_a_recurrence_is_divided_at_multiples_of_its_chunk_alone():
    engine = hybrid()
    submit(engine, "a", 55, max_tokens=1)
    submit(engine, "b", 21, max_tokens=1, first=60)
    assert run(engine, 3) == [
        [("a", 0, 32)],  # 8 tokens are left: too few for b
        [("a*", 32, 23), ("b", 0, 16)],
        [("b*", 16, 5)],
    ]


def test_a_recurrence_takes_a_chunk_where_decodes_would_leave_less():
    engine = hybrid(mixed_step_tokens=5)
    submit(engine, "a", 3)
    run(engine)
    submit(engine, "b", 40, max_tokens=1, first=50)
    prompts = [step for step in run(engine, 7) if step[0][0].startswith("b")]
    assert prompts == [[("b", 0, 16)], [("b", 16, 16)], [("b*", 32, 8)]]


def test_scores_of_a_prompt_that_rows_of_logits_would_divide_are_refused():
    event = submit(hybrid(), "r", 3, sampling=SamplingParams(prompt_logprobs=0))
    assert event.finish == "refused"
    assert event.message.startswith("prompt_logprobs are not computed by a model with recurrent state")
    assert submit(scheduler(), "r", 3, sampling=SamplingParams(prompt_logprobs=0)) is None


def test_the_next_step_is_planned_while_one_runs():
    engine = scheduler()
    submit(engine, "a", 3, max_tokens=3)
    submit(engine, "b", 9, max_tokens=2, first=20)
    shapes, events = overlap(engine)
    assert shapes[:5] == [
        [("a*", 0, 3), ("b", 0, 5)],
        [("a*", 3, 1)],
        [("b*", 5, 4)],
        [("a*", 4, 1), ("b*", 9, 1)],
        [],
    ]
    assert [event for event in events if event[2]] == [("a", 7, "length"), ("b", 7, "length")]
