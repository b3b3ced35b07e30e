"""Steps that overlap while a request's sampling depends on tokens that are awaited (penalties count them)."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_plan.memory.cache import one_pool
from wisp_runtime.engine.loop import run
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from fake_device import fake_device_runner
from scripted_channel import ScriptedChannel
from toy_engine import EOS, VOCAB, answer

LIMITS = Limits(one_pool(80, 4), 32, 12, 64, VOCAB, frozenset({EOS}))


class Synchronous:
    """The same runner; each step is waited for before the next is planned."""

    overlaps = False

    def __init__(self, runner):
        self.forward = runner.forward


class Logged:
    """A device's runner that notes what is launched, and how much is queued when tokens are waited for."""

    def __init__(self, runner):
        self.overlaps, self.runner, self.log, self.steps, self.queued = runner.overlaps, runner, [], 0, []

    def forward(self, plan):
        step = LoggedStep(self, self.runner.forward(plan), self.steps)
        self.log.append(f"forward {self.steps}")
        self.steps += 1
        return step


class LoggedStep:
    def __init__(self, owner, step, number):
        self.owner, self.step, self.number = owner, step, number
        self.plan = step.plan

    def sample(self):
        self.step.sample()
        self.owner.log.append(f"sample {self.number}")

    def sampled_tokens(self):
        stream = self.owner.runner._stream
        self.owner.queued.append(stream.enqueued - self.step.done.place)
        self.owner.log.append(f"tokens {self.number}")
        return self.step.sampled_tokens()


def answers(asked, runner, limits=LIMITS):
    channel = ScriptedChannel(*asked)
    run(channel, Scheduler(limits), runner)
    return channel.tokens


def requests(penalised, count=8, tokens=12):
    return [
        Submit(
            f"r{n}",
            (1 + n % 5, 2, 3),
            tokens,
            SamplingParams(temperature=n % 2, seed=n, presence_penalty=float(n in penalised)),
            ignore_eos=True,
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("penalised", [(), (2,), (0, 3), range(8)], ids=str)
def test_the_next_forward_pass_is_queued_before_the_tokens_of_a_step_are_waited_for(penalised, is_late):
    asked = requests(penalised)
    runner = Logged(fake_device_runner(LIMITS, is_late=is_late))
    runner.runner.warm_up()
    assert answers(asked, runner) == {
        request.request_id: answer(request, LIMITS.max_context) for request in asked
    }
    order = {entry: place for place, entry in enumerate(runner.log)}
    for step in range(runner.steps - 1):
        assert order[f"forward {step + 1}"] < order[f"tokens {step}"] < order[f"sample {step + 1}"]
    assert all(runner.queued[:-1]), "the device had nothing to do after a step"


@given(
    asked=st.lists(
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 1.0]),
            seed=st.integers(0, 3),
            presence_penalty=st.sampled_from([0.0, 1.0]),
            repetition_penalty=st.sampled_from([1.0, 1.1]),
            logprobs=st.sampled_from([None, 2]),
            prompt_logprobs=st.sampled_from([None, None, 1]),
        ),
        min_size=1,
        max_size=9,
    ),
    tokens=st.integers(1, 14),
    blocks=st.sampled_from([12, 80]),  # few: sequences are preempted while a token of theirs is awaited
)
def test_overlapping_steps_give_the_tokens_of_steps_that_wait(asked, tokens, blocks):
    limits = replace(LIMITS, cache=one_pool(blocks, 4))
    requests = [Submit(f"r{n}", (1 + n, 2, 3), tokens + n, params) for n, params in enumerate(asked)]
    waiting = answers(requests, Synchronous(fake_device_runner(limits)), limits)
    assert answers(requests, fake_device_runner(limits), limits) == waiting
    assert waiting == {request.request_id: answer(request, limits.max_context) for request in requests}


def test_a_step_is_sampled_before_the_next_is_launched():
    runner, scheduler = fake_device_runner(LIMITS), Scheduler(LIMITS)
    scheduler.submit(Submit("a", (1, 2), 9, SamplingParams(presence_penalty=1.0)))
    runner.forward(scheduler.plan()).sample()
    unsampled = runner.forward(scheduler.plan())
    with pytest.raises(AssertionError, match="not sampled yet"):
        runner.forward(unsampled.plan)
    with pytest.raises(AssertionError, match="before its tokens are taken"):
        unsampled.sampled_tokens()
