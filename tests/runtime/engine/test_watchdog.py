"""A device that does not respond ends the engine with a named reason; one that is only slow does not."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from wisp_runtime.engine import process, watchdog
from wisp_runtime.engine.execution.runner import run_step
from wisp_runtime.engine.execution.sampler import sampling_batch
from wisp_runtime.engine.scheduling.plan import Chunk
from wisp_runtime.engine.scheduling.sequence import Sequence
from wisp_runtime.engine.transport.messages import Fatal, Submit
from wisp_runtime.engine.watchdog import Watchdog, WatchedRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from toy_engine import VOCAB, ToyRule

TIMEOUT_S = 0.1


class Clock:
    """The watchdog's clock, which a test moves on; its pauses are short."""

    def __init__(self):
        self.now_s, self.looks = 0.0, 0

    def monotonic(self):
        return self.now_s

    def sleep(self, _):
        time.sleep(0.002)
        self.looks += 1

    def advance(self, seconds):
        """Move on, until the watchdog has looked."""
        self.now_s += seconds
        until_looks, deadline_s = self.looks + 2, time.monotonic() + 60
        while self.looks < until_looks:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", clock)
    return clock


class Hung:
    """A runner and its step, which waits for a device until it is let go, in one of its calls."""

    overlaps, plan = True, ()

    def __init__(self, where, in_call=lambda: None):
        self.where, self.gate, self.in_call = where, threading.Event(), in_call

    def forward(self, plan):
        self.hang("forward")
        return self

    def sample(self):
        self.hang("sample")

    def sampled_tokens(self):
        self.hang("sampled_tokens")
        return ["sampled"]

    def hang(self, where):
        self.in_call()
        if self.where == where:
            self.gate.wait(60)


@pytest.mark.parametrize("where", ["forward", "sample", "sampled_tokens"])
def test_a_wait_that_takes_too_long_is_reported_once(where):
    timeouts, runner = [], Hung(where)

    def end(timeout_s):
        timeouts.append(timeout_s)
        runner.gate.set()

    watched = WatchedRunner(runner, Watchdog(end, TIMEOUT_S))
    assert run_step(watched, ()) == ["sampled"]
    assert timeouts == [TIMEOUT_S]
    assert runner.gate.is_set()


def test_many_short_waits_are_no_timeout(clock):
    timeouts, runner = [], Hung("nowhere", lambda: clock.advance(0.9 * TIMEOUT_S))
    watched = WatchedRunner(runner, Watchdog(timeouts.append, TIMEOUT_S))
    for _ in range(10):
        run_step(watched, ())
    assert timeouts == []
    clock.advance(2 * TIMEOUT_S)  # and an engine with nothing to do times out no more
    assert timeouts == []


class SlowRule(ToyRule):
    """A rule whose masks take longer than the timeout, as masks of many slow grammars may together."""

    filled, clock = 0, None

    def fill(self, words):
        self.clock.advance(3 * TIMEOUT_S)
        self.filled += 1
        super().fill(words)


class Sampling(Hung):
    """A runner that reads masks in ``where``, as a device's does: with the launch, or before the sampling."""

    def __init__(self, where, rule):
        super().__init__(where)
        sequence = Sequence(
            Submit("a", (1,), 2, constraint="thirds"),
            priority_key=(0, 0),
            max_length=3,
            eos=frozenset(),
            vocab=VOCAB,
            constraint=rule,
        )
        sequence.pending_sample_row = 0 if where == "sample" else -1
        self.plan = (Chunk.prefill(sequence, 0, 1, samples=True),)

    def hang(self, where):
        if self.where == where:
            assert sampling_batch(self.plan).bitmask is not None


@pytest.mark.parametrize("where", ["forward", "sample"])
def test_masks_that_take_long_are_no_sign_of_a_device_that_hangs(where, clock):
    timeouts, rule = [], SlowRule("thirds")
    rule.clock = clock
    runner = Sampling(where, rule)
    run_step(WatchedRunner(runner, Watchdog(timeouts.append, TIMEOUT_S)), runner.plan)
    assert (timeouts, rule.filled) == ([], 1)


def test_the_end_is_reported_with_its_reason_and_what_to_do(monkeypatch):
    ended, sent = [], []
    monkeypatch.setattr(os, "_exit", ended.append)
    pipe = type("Pipe", (), {"send": staticmethod(sent.append)})()
    process.end_unresponsive(pipe, 60.0)
    (fatal,) = sent
    assert isinstance(fatal, Fatal)
    assert (fatal.reason, ended) == ("DeviceFailed", [fatal.exit_code])
    assert "60 s" in fatal.message
    assert "dmesg" in fatal.message
