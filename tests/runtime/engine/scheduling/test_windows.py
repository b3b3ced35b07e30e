"""Rules 1 to 3 of the scheduler where a window keeps tables short: a prompt takes blocks as it goes on."""

import pytest

from wisp_plan.memory.cache import one_pool
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits, SampledToken
from wisp_runtime.engine.transport.messages import Submit

WINDOW, BLOCK, STEP = 8, 4, 24


def three_that_decode(blocks, deterministic):
    """Return an engine with three sequences that decode, most of their answers to come."""
    limits = Limits(
        cache=one_pool(blocks, BLOCK, WINDOW),
        max_step_tokens=STEP,
        max_concurrent=4,
        max_context=2000,
        vocab=9,
        separate_prefill_decode=deterministic,
    )
    engine = make_scheduler(limits)
    for number in range(3):
        engine.submit(Submit(f"decodes{number}", (number,), 1000))
    step(engine)
    return engine


def step(engine):
    plan = engine.plan()
    engine.commit(plan, [SampledToken(7) for chunk in plan if chunk.samples])
    return [chunk.sequence.id for chunk in plan]


@pytest.mark.parametrize("blocks", range(13, 18))
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_lowest_key_is_not_stopped_in_the_middle_of_its_prompt(blocks, deterministic):
    engine = three_that_decode(blocks, deterministic)
    engine.submit(Submit("prompt", tuple(range(8)) * 25, 1, priority=-1))
    steps = [step(engine) for _ in range(30)]
    computed = sum("prompt" in ids for ids in steps)
    assert "prompt" not in [sequence.id for sequence in (*engine.running, *engine.waiting)]
    assert computed < 200 / STEP + 5


def test_a_prompt_goes_on_with_the_blocks_there_are():
    engine = three_that_decode(100, deterministic=False)
    for _ in range(WINDOW):
        step(engine)  # from here on a sequence gives back a block for each that it takes
    engine.submit(Submit("prompt", tuple(range(8)) * 25, 1))
    step(engine)
    (group,) = engine.cache.groups
    for _ in range(group.available - 1):
        engine.cache.tree.take(group)
    while engine.load.prompt_tokens_total < 203:
        assert "prompt" in step(engine)
    assert engine.load.preemptions_total == 0


def test_a_refused_sequence_is_admitted_once_its_beginning_is_published():
    limits = Limits(one_pool(12, BLOCK, WINDOW), STEP, max_concurrent=4, max_context=400, vocab=9)
    engine, beginning = make_scheduler(limits), tuple(range(8)) * 9
    for number, (tokens, answer) in enumerate(((48, 100), (59, 100), (66, 2))):
        engine.submit(Submit(f"r{number}", (*beginning[:tokens], number), answer))
    for _ in range(
        10
    ):  # as many blocks are free all the time: a sequence gives one back for each that it takes
        step(engine)
    assert [sequence.id for sequence in (*engine.running, *engine.waiting)] == ["r0", "r1"]
