"""Rules 4 to 6 of the scheduler: plans that are made while the step before runs."""

import pytest
from test_scheduler import overlap, scheduler, shape, submit

from wisp_runtime.engine.scheduling.plan import SampledToken
from wisp_runtime.engine.transport.messages import SamplingParams


def test_a_step_is_planned_before_the_tokens_of_the_one_before_are_known():
    engine = scheduler()
    submit(engine, "a", 11, max_tokens=3)
    shapes, events = overlap(engine)
    # It ends by its length, so nothing is planned for the third token.
    assert shapes == [[("a", 0, 8)], [("a*", 8, 3)], [("a*", 11, 1)], [("a*", 12, 1)], []]
    assert events == [("a", 7, None), ("a", 7, None), ("a", 7, "length")]
    assert engine.load.steps == 4


def test_a_chunk_planned_for_a_sequence_that_had_ended_is_dropped():
    engine = scheduler()
    submit(engine, "a", 3)
    shapes, events = overlap(engine, [(1, "a", SampledToken(49))])
    assert shapes == [[("a*", 0, 3)], [("a*", 3, 1)], [("a*", 4, 1)], []]
    assert events == [("a", 7, None), ("a", 49, "stop")]
    assert (engine.load.kv_blocks_used, engine.load.generated_tokens_total, engine.load.steps) == (0, 2, 3)


def test_blocks_of_a_sequence_that_ended_serve_the_next_plan_though_its_chunk_still_runs():
    engine = scheduler(blocks=2, reuses_prefixes=False)
    submit(engine, "a", 4, max_tokens=5)
    submit(engine, "b", 8, max_tokens=1)
    shapes, _ = overlap(engine, [(0, "a", SampledToken(49))])
    # a's second chunk, in the second plan, holds both blocks; it is still to run when b's plan takes them.
    assert shapes == [[("a*", 0, 4)], [("a*", 4, 1)], [("b*", 0, 8)], []]


def test_a_sequence_preempted_while_its_token_is_awaited_gets_the_token_and_computes_it_later():
    engine = scheduler(blocks=4, max_step_tokens=64, reuses_prefixes=False)
    submit(engine, "old", 4, max_tokens=8)
    submit(engine, "young", 4, max_tokens=6, first=20)
    shapes, events = overlap(engine)
    assert shapes == [
        [("old*", 0, 4), ("young*", 0, 4)],
        *[[("old*", n, 1), ("young*", n, 1)] for n in (4, 5, 6, 7)],
        [("old*", 8, 1)],  # takes a third block: the young one, awaiting its fifth token, gives up its two
        *[[("old*", n, 1)] for n in (9, 10)],
        [],  # the old one ends by its length
        [("young*", 0, 9)],  # with the fifth token
        [],
    ]
    assert [token for name, token, _ in events if name == "young"] == [7] * 6
    assert engine.load.preemptions_total == 1


def test_a_request_with_penalties_is_planned_while_its_token_is_awaited():
    plain, penalised = scheduler(), scheduler()
    for engine, penalty in ((plain, 0.0), (penalised, 0.5)):
        submit(engine, "a", 3, max_tokens=3)
        submit(engine, "b", 3, max_tokens=2, sampling=SamplingParams(presence_penalty=penalty))
    shapes, events = overlap(penalised)
    assert shapes == [[("a*", 0, 3), ("b*", 0, 3)], [("a*", 3, 1), ("b*", 3, 1)], [("a*", 4, 1)], []]
    assert (shapes, events) == overlap(plain)


def test_what_a_spoiled_step_computed_is_found_by_no_plan_made_meanwhile():
    engine = scheduler(max_step_tokens=64)
    submit(engine, "bad", 9)
    plan = engine.plan()
    submit(engine, "same", 9)
    meanwhile = engine.plan()
    assert shape(meanwhile) == [("bad*", 9, 1), ("same*", 0, 9)]
    engine.commit(plan, [SampledToken(-1, error="not finite")])
    assert [event.request_id for event in engine.commit(meanwhile, [SampledToken(7), SampledToken(7)])] == [
        "same"
    ]


def test_two_steps_may_be_under_way_and_no_more():
    engine = scheduler()
    submit(engine, "a")
    engine.plan()
    engine.plan()
    with pytest.raises(AssertionError, match="commit one"):
        engine.plan()
