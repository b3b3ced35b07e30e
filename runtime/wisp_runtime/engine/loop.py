"""The engine's loop: take in messages, run a step, send its tokens. Sleeps when there is nothing to do.

With a runner that overlaps, a step is planned and its forward pass launched before the tokens of the step
before are known, so the host works on one step while the device runs the other. Its sampling is launched once
those are committed, because penalties count them and grammars parse them. Masks of grammars are computed
beside the forward pass. When a plan is made, at most one before it is uncommitted
(:meth:`.Scheduler.plan` asserts it).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Protocol

from wisp_runtime.engine.constrained import masks
from wisp_runtime.engine.constrained.compiler import GrammarCompiler
from wisp_runtime.engine.execution.runner import LaunchedStep, Runner, run_step
from wisp_runtime.engine.expert_report import expert_report
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import (
    Abort,
    ReadExperts,
    Shutdown,
    StepOutput,
    Submit,
    TokenEvent,
)
from wisp_runtime.layers.expert_load import ExpertLoad

_POLL_S = 0.005  # while grammars are compiled, messages are looked for as often


class Channel(Protocol):
    """Connection to the server; :class:`.pipe.Pipe` is the real one."""

    def send(self, message: Any) -> None:
        """Send one message."""
        ...

    def receive(self, *, waits: bool) -> list[Any]:
        """Return the messages that have come; with ``waits``, at least one."""
        ...


def step(scheduler: Scheduler, runner: Runner) -> list[TokenEvent]:
    """Run one step of the engine, from plan to commit."""
    plan = scheduler.plan()
    return scheduler.commit(plan, run_step(runner, plan))


def run(
    channel: Channel,
    scheduler: Scheduler,
    runner: Runner,
    early: Iterable[Any] = (),
    compiler: GrammarCompiler | None = None,
    experts: ExpertLoad | None = None,
) -> None:
    """Serve until a shutdown is requested.

    Args:
        early: messages that came before the engine was ready.
        compiler: compiler of the requests' grammars; without it they are refused.
        experts: load of the model's experts, which the server may ask for.

    Raises:
        ServerGone: the server has closed its end.
        RuntimeFailure: the device failed.
    """
    inbox = list(early)
    compiler = compiler or GrammarCompiler()
    in_flight: LaunchedStep | None = None
    began_s = time.monotonic()  # the step that is in flight, or planned next
    while True:
        is_idle = scheduler.is_idle and in_flight is None and not inbox
        if is_idle and not compiler.is_idle:
            compiler.wait(_POLL_S)
        inbox += channel.receive(waits=is_idle and compiler.is_idle)
        if any(isinstance(message, Shutdown) for message in inbox):
            compiler.close()
            return
        if experts is not None and any(isinstance(message, ReadExperts) for message in inbox):
            channel.send(expert_report(experts, scheduler.load.steps))
        now_s = time.monotonic()
        began_s = began_s if in_flight is not None else now_s
        events = scheduler.expire(now_s) + _handle_messages(scheduler, compiler, inbox, now_s)
        events += _take_compiled(scheduler, compiler, events)
        inbox.clear()
        completed, in_flight = in_flight, _forward(scheduler, runner, now_s)
        if in_flight is not None and not runner.overlaps:
            in_flight.sample()
            completed, in_flight = in_flight, None
        if completed is not None:
            tokens = completed.sampled_tokens()
            done_s = time.monotonic()
            scheduler.observe(completed.plan, done_s - began_s)
            began_s = done_s
            events += scheduler.commit(completed.plan, tokens)
        if in_flight is not None:
            in_flight.sample()
        if events or completed is not None:
            channel.send(StepOutput(tuple(events), scheduler.load))


def _forward(scheduler: Scheduler, runner: Runner, now_s: float) -> LaunchedStep | None:
    """Plan a step and launch its forward pass, if there is anything to run."""
    plan = scheduler.plan(now_s)
    sampling = [chunk.sequence for chunk in plan if chunk.samples and chunk.sequence.pending_sample_row < 0]
    masks.start([sequence.mask for sequence in sampling if sequence.mask is not None])
    return runner.forward(plan) if plan else None


def _handle_messages(
    scheduler: Scheduler, compiler: GrammarCompiler, inbox: Iterable[Any], now_s: float
) -> list[TokenEvent]:
    """Submit and abort requests; return the events they cause at once."""
    events: list[TokenEvent | None] = []
    for message in inbox:
        match message:
            case Submit(request_id=request_id):
                events.append(surplus := scheduler.submit(message, now_s))
                if message.constraint is not None and not (surplus and surplus.request_id == request_id):
                    compiler.add(message)
            case Abort(request_id=request_id):
                events.append(scheduler.abort(request_id))
            case ReadExperts():
                pass  # answered above
            case _:
                raise TypeError(f"the server sent a {type(message).__name__}, which no engine understands")
    return [event for event in events if event is not None]


def _take_compiled(
    scheduler: Scheduler, compiler: GrammarCompiler, ended: Iterable[TokenEvent]
) -> list[TokenEvent]:
    """Let requests start whose grammars are compiled, but for those that ended; return the events of it."""
    for event in ended:
        compiler.forget(event.request_id)
    events = [scheduler.constrain(request_id, constraint) for request_id, constraint in compiler.take()]
    return [event for event in events if event is not None]
