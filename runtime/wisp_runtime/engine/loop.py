"""The engine's round: hear what came, run a step, tell what it gave. Sleeps when there is nothing to do.

With a runner that overlaps, a step is planned and its forward pass launched before the tokens of the one
before
are known: the processor's work for one step is done while the device runs the other. Its sampling is launched
once they are committed, because penalties count them. When a plan is made, at most one before it is
uncommitted (:meth:`.Scheduler.plan` asserts it).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from wisp_runtime.engine.execution.runner import LaunchedStep, Runner, run_step
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import Abort, Shutdown, StepOutput, Submit, TokenEvent


class Line(Protocol):
    """What connects to the server; :class:`.pipe.Pipe` is the real one."""

    def send(self, message: Any) -> None:
        """Send one message."""
        ...

    def receive(self, *, waits: bool) -> list[Any]:
        """Return what has come."""
        ...


def step(scheduler: Scheduler, runner: Runner) -> list[TokenEvent]:
    """Run one step of the engine, from plan to commit."""
    plan = scheduler.plan()
    return scheduler.commit(plan, run_step(runner, plan))


def run(line: Line, scheduler: Scheduler, runner: Runner, early: Iterable[Any] = ()) -> None:
    """Serve until told to shut down.

    Args:
        early: messages that came before the engine was ready.

    Raises:
        ServerGone: nobody is left to serve.
        RuntimeFailure: the device failed.
    """
    inbox = list(early)
    in_flight: LaunchedStep | None = None
    while True:
        inbox += line.receive(waits=scheduler.is_idle and in_flight is None and not inbox)
        if any(isinstance(message, Shutdown) for message in inbox):
            return
        events = _hear(scheduler, inbox)
        inbox.clear()
        completed, in_flight = in_flight, _forward(scheduler, runner)
        if in_flight is not None and not runner.overlaps:
            in_flight.sample()
            completed, in_flight = in_flight, None
        if completed is not None:
            events += scheduler.commit(completed.plan, completed.sampled_tokens())
        if in_flight is not None:
            in_flight.sample()
        if events or completed is not None:
            line.send(StepOutput(tuple(events), scheduler.load))


def _forward(scheduler: Scheduler, runner: Runner) -> LaunchedStep | None:
    """Plan a step and launch its forward pass, if there is anything to run."""
    plan = scheduler.plan()
    return runner.forward(plan) if plan else None


def _hear(scheduler: Scheduler, inbox: Iterable[Any]) -> list[TokenEvent]:
    """Take in requests and aborts; return the events they cause at once."""
    events: list[TokenEvent | None] = []
    for message in inbox:
        match message:
            case Submit():
                events.append(scheduler.submit(message))
            case Abort(request_id=request_id):
                events.append(scheduler.abort(request_id))
            case _:
                raise TypeError(f"the server sent a {type(message).__name__}, which no engine understands")
    return [event for event in events if event is not None]
