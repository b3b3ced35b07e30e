"""Rules 1 to 3 of the scheduler, one at a time; what they add up to is in test_engine_properties.py."""

import pytest

from wisp_plan.memory.cache import one_pool
from wisp_runtime.batch import StepKind
from wisp_runtime.engine.scheduling.plan import Limits, SampledToken
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.scheduling.waiting_queue import PRIORITY_BOOST
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

LIMITS = {
    "blocks": 100,
    "block_tokens": 4,
    "max_step_tokens": 8,
    "max_concurrent": 4,
    "max_context": 64,
    "vocab": 50,
    "eos": frozenset({49}),
}


def limits_of(blocks, block_tokens, **limits):
    return Limits(one_pool(blocks, block_tokens), **limits)


def scheduler(**limits):
    return Scheduler(limits_of(**(LIMITS | limits)))


def submit(engine, name, tokens=3, max_tokens=20, first=1, **fields):
    prompt = tuple(range(first, first + tokens)) if isinstance(tokens, int) else tokens
    return engine.submit(Submit(name, prompt, max_tokens, **fields))


def shape(plan):
    """What a plan runs: (request, first position, tokens), with a star where a token is sampled."""
    return [(f"{c.sequence.id}{'*' if c.samples else ''}", c.start, c.tokens) for c in plan]


def run(engine, steps=1, token=7):
    """Run steps, sampling ``token`` each time; return the shape of each."""
    shapes = []
    for _ in range(steps):
        plan = engine.plan()
        engine.commit(plan, [SampledToken(token)] * sum(chunk.samples for chunk in plan))
        shapes.append(shape(plan))
    return shapes


def overlap(engine, special=(), steps=99):
    """Run steps, each planned before the tokens of the one before are known; return the shape of each.

    Tokens are 7, but for special ones: (step, request, sampled token).
    """
    special = {(step, name): token for step, name, token in special}
    in_flight, shapes, events = None, [], []
    for number in range(steps):
        plan = engine.plan()
        shapes.append(shape(plan))
        if in_flight is not None:
            names = [chunk.sequence.id for chunk in in_flight if chunk.samples]
            tokens = [special.get((number - 1, name), SampledToken(7)) for name in names]
            events += engine.commit(in_flight, tokens)
        in_flight = plan or None
        if engine.is_idle and in_flight is None:
            break
    return shapes, [(event.request_id, event.token, event.finish) for event in events]


def test_a_long_prompt_is_computed_in_chunks_and_samples_at_its_end():
    engine = scheduler()
    submit(engine, "a", 19)
    assert run(engine, 4) == [[("a", 0, 8)], [("a", 8, 8)], [("a*", 16, 3)], [("a*", 19, 1)]]


def test_decodes_come_first_and_prefill_takes_what_is_left():
    engine = scheduler()
    submit(engine, "a", 3)
    run(engine)
    submit(engine, "b", 12)
    assert run(engine, 3) == [
        [("a*", 3, 1), ("b", 0, 7)],
        [("a*", 4, 1), ("b*", 7, 5)],
        [("a*", 5, 1), ("b*", 12, 1)],
    ]


def test_several_prompts_share_a_step_in_the_order_in_which_they_came():
    engine = scheduler()
    for name in "abc":
        submit(engine, name, 3)
    assert run(engine, 2) == [
        [("a*", 0, 3), ("b*", 0, 3), ("c", 0, 2)],
        [("a*", 3, 1), ("b*", 3, 1), ("c*", 2, 1)],
    ]


def test_no_more_run_than_may_and_the_next_comes_when_one_ends():
    engine = scheduler(max_concurrent=2)
    for name in "abc":
        submit(engine, name, 2, max_tokens=2)
    assert [len(plan) for plan in run(engine, 2)] == [2, 2]
    assert run(engine) == [[("c*", 0, 2)]]


def test_prompts_take_less_of_a_step_beside_sequences_that_decode():
    engine = scheduler(max_step_tokens=8, mixed_step_tokens=4)
    submit(engine, "a", 12, max_tokens=2)
    submit(engine, "b", 10, max_tokens=1, first=20)
    assert run(engine, 5) == [
        [("a", 0, 8)],  # no sequence decodes
        [("a*", 8, 4), ("b", 0, 4)],
        [("a*", 12, 1), ("b", 4, 3)],
        [("b*", 7, 3)],
        [],
    ]


def test_a_step_smaller_than_the_concurrency_bounds_what_runs():
    engine = scheduler(max_step_tokens=2, max_concurrent=9)
    for name in "abc":
        submit(engine, name, 1)
    assert run(engine, 2) == [[("a*", 0, 1), ("b*", 0, 1)], [("a*", 1, 1), ("b*", 1, 1)]]


def test_a_lower_priority_number_goes_first():
    engine = scheduler(max_concurrent=1)
    submit(engine, "later", 2, max_tokens=1, priority=1)
    submit(engine, "sooner", 2, max_tokens=1, priority=-1)
    submit(engine, "middle", 2, max_tokens=1)
    assert [step[0][0] for step in run(engine, 3)] == ["sooner*", "middle*", "later*"]


def test_a_chunk_says_what_it_is_and_what_may_come_of_it():
    engine = scheduler(max_step_tokens=4)
    submit(engine, "a", 1)  # the last token of a sequence is a decode, a prompt's too
    submit(engine, "b", 5)
    kinds = []
    for _ in range(3):
        plan = engine.plan()
        kinds.append([(c.sequence.id, c.kind, c.tokens, c.logits, c.max_new_tokens) for c in plan])
        engine.commit(plan, [SampledToken(7)] * sum(chunk.samples for chunk in plan))
    assert kinds == [
        [("a", StepKind.DECODE, 1, 1, 1), ("b", StepKind.PREFILL, 3, 0, 0)],
        [("a", StepKind.DECODE, 1, 1, 1), ("b", StepKind.PREFILL, 2, 1, 1)],
        [("a", StepKind.DECODE, 1, 1, 1), ("b", StepKind.DECODE, 1, 1, 1)],
    ]
    assert engine.load.prompt_tokens_total == 6


def test_a_token_of_a_prompt_that_no_other_fits_beside_is_a_prefill():
    engine = scheduler(max_step_tokens=2, max_concurrent=2)
    submit(engine, "a", 1)
    submit(engine, "b", 3)
    assert [(c.kind, c.tokens, c.samples) for c in engine.plan()] == [
        (StepKind.DECODE, 1, True),
        (StepKind.PREFILL, 1, False),
    ]


def test_a_low_priority_is_overtaken_only_so_many_times():
    engine = scheduler(max_concurrent=1, max_step_tokens=1)
    submit(engine, "patient", 1, max_tokens=1, priority=1)
    for n in range(PRIORITY_BOOST + 1):
        submit(engine, f"urgent-{n}", 1, max_tokens=1)
    order = [step[0][0] for step in run(engine, PRIORITY_BOOST + 2)]
    assert order.index("patient*") == PRIORITY_BOOST - 1


def test_nothing_of_about_its_length_overtakes_a_request_that_waits_for_blocks():
    engine = scheduler(blocks=6, max_step_tokens=64)
    submit(engine, "running", 12, max_tokens=4)
    run(engine)
    submit(engine, "big", 20, max_tokens=1)
    submit(engine, "small", 6, max_tokens=1)
    plans = run(engine, 4)
    assert [[name for name, _, _ in plan] for plan in plans[:3]] == [["running*"]] * 3
    assert plans[3][0][0] == "big*"


def test_when_blocks_run_out_the_youngest_gives_up_its_own_and_comes_back():
    engine = scheduler(blocks=6, max_step_tokens=64, reuses_prefixes=False)
    submit(engine, "old", 4, max_tokens=17, ignore_eos=True)
    submit(engine, "young", 4, max_tokens=13, first=11, ignore_eos=True)
    both, alone, again = run(engine, 9), run(engine, 8), run(engine, 4)
    # Three blocks each hold 12 tokens; the old one's 13th takes the place of all of the young one's.
    assert both[-1] == [("old*", 11, 1), ("young*", 11, 1)]
    assert [len(plan) for plan in alone] == [1] * 8
    # Its prompt and what it had generated are computed anew, and nothing is sampled twice.
    assert again == [[("young*", 0, 13)], [("young*", 13, 1)], [("young*", 14, 1)], [("young*", 15, 1)]]
    assert engine.is_idle
    assert (engine.load.preemptions_total, engine.load.generated_tokens_total) == (1, 17 + 13)


def test_the_youngest_sits_out_rather_than_giving_up_its_own_blocks():
    engine = scheduler(blocks=3, max_step_tokens=64, reuses_prefixes=False)
    submit(engine, "old", 4, max_tokens=5, ignore_eos=True)
    submit(engine, "young", 3, max_tokens=5, first=11, ignore_eos=True)
    assert run(engine, 6) == [
        [("old*", 0, 4), ("young*", 0, 3)],
        [("old*", 4, 1), ("young*", 3, 1)],  # the old one has taken the last block
        [("old*", 5, 1)],
        [("old*", 6, 1)],
        [("old*", 7, 1)],
        [("young*", 4, 1)],
    ]
    assert engine.load.preemptions_total == 0


def test_an_abort_frees_its_blocks_at_once_and_is_gone_from_the_next_plan():
    engine = scheduler()
    submit(engine, "a", 12)
    submit(engine, "b", 4)
    run(engine)
    assert engine.abort("a").finish == "abort"
    assert engine.load.kv_blocks_used == 0
    assert run(engine) == [[("b*", 0, 4)]]
    assert engine.abort("a") is None


def test_a_request_aborted_while_its_step_runs_gets_no_token_of_it():
    engine = scheduler()
    submit(engine, "a")
    submit(engine, "b")
    plan = engine.plan()
    engine.abort("a")
    assert [event.request_id for event in engine.commit(plan, [SampledToken(7), SampledToken(8)])] == ["b"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tokens": ()}, "empty"),
        ({"tokens": 64, "max_tokens": 1}, "the context holds 64"),
        ({"tokens": (1, 50)}, "0 … 49"),
        ({"tokens": (-1,)}, "0 … 49"),
        ({"sampling": SamplingParams(logit_bias=((50, 1.0),))}, "0 … 49"),
        ({"max_tokens": 0}, "at least 1"),
        ({"sampling": SamplingParams(top_k=2**31)}, "top_k is 2147483648"),  # no 32-bit number
        ({"tokens": 10, "max_tokens": 12}, "6 KV blocks and the engine has 5"),  # 21 tokens are computed
        ({"tokens": 10, "max_tokens": 11}, None),  # 20 are: the last one sampled needs no block
    ],
)
def test_what_can_never_run_is_refused_at_once_with_the_reason(fields, why):
    event = submit(engine := scheduler(blocks=5), "r", **fields)
    if why is None:
        assert event is None
        return
    assert (event.finish, event.token) == ("refused", None)
    assert why in event.message
    assert engine.is_idle


def test_the_second_of_two_prompts_computes_only_its_own_tail():
    engine = scheduler(blocks=200, max_context=600, max_step_tokens=512)
    shared = tuple(n % 40 for n in range(500))
    submit(engine, "first", (*shared, 1, 2, 3), max_tokens=1)
    run(engine, 1)
    before = engine.load
    submit(engine, "second", (*shared, 4, 5, 6), max_tokens=1)
    plan = engine.plan()
    assert shape(plan) == [("second*", 500, 3)]
    (event,) = engine.commit(plan, [SampledToken(7)])
    assert event.cached_tokens == 500
    assert engine.load.prompt_tokens_total - before.prompt_tokens_total == 3
    assert engine.load.cached_tokens_total - before.cached_tokens_total == 500


def test_a_prompt_known_to_the_last_token_still_computes_its_last_block():
    engine = scheduler()
    submit(engine, "a", 8, max_tokens=1)
    run(engine)
    submit(engine, "b", 8, max_tokens=1)
    assert run(engine) == [[("b*", 4, 4)]]


def test_what_was_generated_is_found_again_too():
    engine = scheduler()
    submit(engine, "a", (1, 2, 3), max_tokens=6)
    run(engine, 6)
    submit(engine, "b", (1, 2, 3, 7, 7, 7, 7, 7, 7, 9), max_tokens=1)
    assert run(engine) == [[("b*", 8, 2)]]


def test_equal_prompts_that_come_together_are_computed_once_as_far_as_a_step_reaches():
    engine = scheduler(max_step_tokens=8)
    submit(engine, "a", 16)
    submit(engine, "b", 16)
    assert run(engine, 3) == [[("a", 0, 8)], [("a*", 8, 8)], [("a*", 16, 1), ("b*", 12, 4)]]


@pytest.mark.parametrize(
    ("limits", "fields"), [({"reuses_prefixes": False}, {}), ({}, {"use_prefix_cache": False})]
)
def test_without_reuse_everything_is_computed(limits, fields):
    engine = scheduler(**limits)
    for name in "ab":
        submit(engine, name, 8, max_tokens=1, **fields)
        assert run(engine) == [[(f"{name}*", 0, 8)]]


def test_unsound_logits_end_one_request_and_nothing_of_it_is_reused():
    engine = scheduler(max_step_tokens=64)
    submit(engine, "bad", 9)
    submit(engine, "good", 3, first=20)
    plan = engine.plan()
    events = engine.commit(plan, [SampledToken(-1, error="not finite"), SampledToken(7)])
    assert [(event.request_id, event.finish, event.message) for event in events] == [
        ("bad", "error", "not finite"),
        ("good", None, ""),
    ]
    submit(engine, "again", 9)
    assert run(engine) == [[("good*", 3, 1), ("again*", 0, 9)]]


def test_unsound_logits_of_a_request_that_was_aborted_meanwhile_are_not_reused_either():
    engine = scheduler()
    submit(engine, "bad", 11)
    engine.commit(engine.plan(), [])
    plan = engine.plan()  # its first eight tokens are in the prefix cache by now
    engine.abort("bad")
    assert engine.commit(plan, [SampledToken(-1, error="not finite")]) == []
    submit(engine, "again", 11)
    assert run(engine) == [[("again", 0, 8)]]


def test_the_first_event_says_how_much_was_cached_and_the_others_do_not():
    engine = scheduler(max_step_tokens=64)
    submit(engine, "a", 9, max_tokens=1)
    run(engine)
    submit(engine, "b", 9, max_tokens=3)
    cached = [
        event.cached_tokens for _ in range(3) for event in engine.commit(engine.plan(), [SampledToken(7)])
    ]
    assert cached == [8, 0, 0]


def test_the_first_event_says_how_much_was_cached_even_after_a_preemption():
    engine = scheduler(blocks=11, block_tokens=1, max_step_tokens=2)
    submit(engine, "before", 2, max_tokens=1)
    run(engine)
    submit(engine, "old", 1, max_tokens=8, first=30)
    run(engine)
    submit(engine, "new", 6, max_tokens=1)
    before = run(engine, 3)
    last = engine.plan()
    assert [before[-1], shape(last)] == [[("old*", 3, 1), ("new", 4, 1)], [("old*", 4, 1), ("new*", 5, 1)]]
    assert shape(engine.plan()) == [("old*", 5, 1)]
    assert engine.load.preemptions_total == 1
    _, new = engine.commit(last, [SampledToken(7), SampledToken(7)])
    assert (new.request_id, new.finish, new.cached_tokens) == ("new", "length", 2)


def test_the_first_token_reports_how_long_its_sequence_waited():
    engine = scheduler(max_concurrent=1)
    submit(engine, "a", max_tokens=1)
    engine.submit(Submit("b", (5, 6, 7), 3), now_s=10.0)
    events = []
    for now_s in (12.0, 13.5, 14.0, 15.0):
        plan = engine.plan(now_s)
        events += engine.commit(plan, [SampledToken(7)] * len(plan))
    assert [(event.request_id, event.queued_s) for event in events] == [
        ("a", 12.0),
        ("b", 3.5),
        ("b", 0.0),
        ("b", 0.0),
    ]
