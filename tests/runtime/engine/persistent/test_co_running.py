"""The persistent kernel beside other processes: suspended under MPS, before the next step."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from wisp_plan.memory.cache import one_pool
from wisp_runtime.engine.execution.runner import run_step
from wisp_runtime.engine.persistent.co_running import CHECK_EVERY_S, RESUME_AFTER_S, CoRunningCheck
from wisp_runtime.engine.persistent.strategy import DecodeStrategy, watch_co_running
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.startup import Engine
from wisp_runtime.engine.transport.messages import Load, Ready, Submit

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from fake_device import fake_device_runner
from toy_engine import EOS, VOCAB

STRATEGY = DecodeStrategy("persistent", "", 32, 49_000)


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def made():
    """A kernel, the number of its neighbours, a clock, and the changes that the check reported."""
    kernel, clock = SimpleNamespace(max_sequences=32, max_context_tokens=49_000), Clock()
    neighbours, changes = [0], []
    check = CoRunningCheck(kernel, lambda: neighbours[0], clock)
    check.on_change = changes.append
    return SimpleNamespace(kernel=kernel, clock=clock, neighbours=neighbours, changes=changes, check=check)


def test_a_neighbour_that_comes_while_serving_suspends_the_kernel_and_one_that_goes_brings_it_back(made):
    made.check()
    assert (made.kernel.max_context_tokens, made.changes) == (49_000, [])
    made.neighbours[0] = 1
    made.clock.now_s += CHECK_EVERY_S
    made.check()
    assert (made.kernel.max_context_tokens, made.changes) == (0, [True])
    made.neighbours[0] = 0
    made.clock.now_s += RESUME_AFTER_S - 1
    made.check()
    assert made.kernel.max_context_tokens == 0, "it may be starting again"
    made.clock.now_s += 1
    made.check()
    assert (made.kernel.max_context_tokens, made.changes) == (49_000, [True, False])


def test_the_driver_is_asked_at_most_twice_a_second(made):
    asked = []
    check = CoRunningCheck(made.kernel, lambda: asked.append(1) or 0, made.clock)
    for _ in range(400):
        check()
        made.clock.now_s += 0.005
    assert len(asked) == 4


def test_the_runner_checks_before_it_stages_a_step():
    limits = Limits(one_pool(80, 4), 32, 12, 64, VOCAB, frozenset({EOS}))
    runner, scheduler = fake_device_runner(limits), Scheduler(limits)
    runner.forward_pass.persistent = SimpleNamespace(max_context_tokens=49_000, takes=lambda batch: False)
    device = SimpleNamespace(co_running_processes=lambda: 1)
    check = watch_co_running(runner, STRATEGY, device)
    scheduler.submit(Submit("r", (1, 2, 3), 4))
    run_step(runner, scheduler.plan())
    assert check.is_suspended
    assert runner.forward_pass.persistent.max_context_tokens == 0


def test_deterministic_mode_keeps_its_path():
    limits = Limits(one_pool(80, 4), 32, 12, 64, VOCAB, frozenset({EOS}))
    runner = fake_device_runner(limits)
    runner.forward_pass.persistent = SimpleNamespace(max_context_tokens=49_000)
    assert watch_co_running(runner, replace(STRATEGY, is_deterministic=True), None) is None


def test_state_names_the_suspension():
    ready = Ready(4096, 32, 90, (), {}, {"set": "hopper"} | STRATEGY.to_dict(), "cuda", Load())
    engine = Engine(SimpleNamespace(load=Load(running=1)), None, ready)
    assert engine.ready_while(False).kernels["decodePath"] == "persistent"
    shown = engine.ready_while(True).kernels
    assert (shown["set"], shown["decodePath"]) == ("hopper", "general")
    assert "MPS" in shown["why"]
