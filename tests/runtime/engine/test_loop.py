"""The loop between pipe and scheduler, and the frames on the pipe."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_plan.memory.cache import one_pool
from wisp_runtime.engine.loop import run
from wisp_runtime.engine.scheduling.plan import Limits, SampledToken
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import (
    Abort,
    Load,
    SamplingParams,
    Shutdown,
    StepOutput,
    Submit,
    TokenEvent,
)
from wisp_runtime.engine.transport.pipe import Pipe, ServerGone
from wisp_runtime.engine.transport.wire import Decoder, encode


class Script:
    """A channel whose ``receive`` returns the next of ``inboxes``; it notes which calls may wait."""

    def __init__(self, *inboxes):
        self.inboxes, self.sent, self.waited = list(inboxes), [], []

    def receive(self, *, waits):
        self.waited.append(waits)
        return self.inboxes.pop(0) if self.inboxes else [Shutdown()]

    def send(self, message):
        self.sent.append(message)


class Sevens:
    overlaps = False

    def forward(self, plan):
        return Completed(plan)


class Completed:
    def __init__(self, plan):
        self.plan = plan

    def sample(self):
        pass

    def sampled_tokens(self):
        return [SampledToken(7)] * sum(chunk.samples for chunk in self.plan)


class Overlapping:
    """Gives sevens when asked for them; notes when steps are launched, sampled, and their tokens taken."""

    overlaps = True

    def __init__(self):
        self.log = []

    def forward(self, plan):
        step = sum(entry.startswith("forward") for entry in self.log)
        self.log.append(f"forward {step}")
        return InFlight(plan, self.log, step)


class InFlight(Completed):
    def __init__(self, plan, log, step):
        super().__init__(plan)
        self.log, self.step = log, step

    def sample(self):
        self.log.append(f"sample {self.step}")

    def sampled_tokens(self):
        self.log.append(f"tokens {self.step}")
        return super().sampled_tokens()


def serve(*inboxes, early=(), runner=None):
    channel = Script(*inboxes)
    run(channel, Scheduler(Limits(one_pool(9, 4), 8, 4, 64, 50)), runner or Sevens(), early)
    return channel


def submit(name, prompt=(1, 2), max_tokens=2):
    return Submit(name, prompt, max_tokens, SamplingParams(temperature=0.0))


def events_of(channel):
    return [
        [(event.request_id, event.token, event.finish) for event in message.events]
        for message in channel.sent
    ]


def test_it_waits_for_messages_only_when_nothing_runs():
    channel = serve([submit("a")], [], [])
    assert channel.waited == [True, False, True, True]
    assert events_of(channel) == [[("a", 7, None)], [("a", 7, "length")]]


def test_every_step_sends_the_load_even_without_a_token():
    channel = serve([submit("a", tuple(range(1, 13)))], [])
    assert events_of(channel) == [[], [("a", 7, None)]]
    assert [message.load.running for message in channel.sent] == [1, 1]


def test_what_came_while_starting_is_served_first():
    assert events_of(serve([], early=[submit("early")]))[0] == [("early", 7, None)]


def test_an_abort_and_a_refusal_are_sent_with_the_step_or_at_once_when_there_is_none():
    channel = serve([submit("a", max_tokens=9)], [Abort("a"), Abort("nobody")], [submit("bad", (99,))])
    assert events_of(channel) == [[("a", 7, None)], [("a", None, "abort")], [("bad", None, "refused")]]
    channel = serve([submit("bad", (99,)), submit("good", max_tokens=1)])
    assert events_of(channel) == [[("bad", None, "refused"), ("good", 7, "length")]]


def test_a_forward_pass_is_launched_before_the_tokens_of_the_step_before_are_taken_and_sampled_after():
    runner = Overlapping()
    channel = serve([submit("a", max_tokens=3)], [], [], [], runner=runner)
    assert runner.log == [
        *("forward 0", "sample 0"),
        *("forward 1", "tokens 0", "sample 1"),
        *("forward 2", "tokens 1", "sample 2"),
        "tokens 2",
    ]
    assert events_of(channel) == [[("a", 7, None)], [("a", 7, None)], [("a", 7, "length")]]
    assert channel.waited == [True, False, False, False, True]


def test_a_surplus_step_is_completed_before_the_loop_waits():
    channel = serve([submit("a", max_tokens=9)], [], [Abort("a")], [], runner=Overlapping())
    assert events_of(channel) == [[("a", 7, None)], [("a", None, "abort")]]
    assert channel.waited == [True, False, False, True, True]
    assert [message.load.steps for message in channel.sent] == [1, 2]


def test_events_that_precede_the_first_step_are_sent_before_it():
    channel = serve([submit("bad", (99,)), submit("good", max_tokens=1)], [], runner=Overlapping())
    assert events_of(channel) == [[("bad", None, "refused")], [("good", 7, "length")]]


def test_a_message_no_engine_understands_is_not_passed_over():
    with pytest.raises(TypeError, match="str"):
        serve(["what?"])


MESSAGES = [submit("a"), Abort("b"), StepOutput((TokenEvent("a", 3),), Load(steps=1)), Shutdown()]


@given(st.lists(st.integers(1, 40), max_size=20))
def test_messages_survive_any_cutting_of_the_stream(cuts):
    stream, decoder, got = b"".join(map(encode, MESSAGES)), Decoder(), []
    for size in [*cuts, len(stream)]:
        got += decoder.feed(stream[:size])
        stream = stream[size:]
    assert got == MESSAGES


def test_a_pipe_gives_what_is_there_without_waiting():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe = Pipe(theirs)
        assert pipe.receive(waits=False) == []
        ours.sendall(b"".join(map(encode, MESSAGES)) + encode("half")[:5])
        assert pipe.receive(waits=False) == MESSAGES
        ours.sendall(encode("half")[5:])
        assert pipe.receive(waits=True) == ["half"]


def test_a_closed_pipe_says_that_the_server_is_gone():
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        pipe = Pipe(theirs)
        with pytest.raises(ServerGone):
            pipe.receive(waits=True)
        with pytest.raises(ServerGone):
            pipe.send(Shutdown())
