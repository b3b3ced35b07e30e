"""The engine's round: hear what came, run a step, tell what it gave. Sleeps when there is nothing to do.

With a runner that overlaps, a step is planned and launched before the draws of the one before are
known: the processor's work for one step is done while the device runs the other. When a plan is made, at
most one before it is uncommitted (:meth:`.Scheduler.plan` asserts it).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from wisp_runtime.engine.scheduling.plan import Draw, Plan
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import Abort, Shutdown, StepOutput, Submit, TokenEvent


class Pending(Protocol):
    """A step that was launched."""

    def draws(self) -> list[Draw]:
        """Wait for the step; return one draw per chunk that samples, in the plan's order."""
        ...


class Runs(Protocol):
    """What runs plans: :class:`.runner.Runner` on the CPU, :class:`.device_runner.DeviceRunner` on a GPU.

    Attributes:
        overlaps: whether ``launch`` returns before the step is done, so that a next one can be launched.
    """

    overlaps: bool

    def launch(self, plan: Plan) -> Pending:
        """Begin to compute the plan's chunks, after those of the plans before."""
        ...


class Line(Protocol):
    """What connects to the server; :class:`.pipe.Pipe` is the real one."""

    def send(self, message: Any) -> None:
        """Send one message."""
        ...

    def receive(self, *, waits: bool) -> list[Any]:
        """Return what has come."""
        ...


def step(scheduler: Scheduler, runner: Runs) -> list[TokenEvent]:
    """Run one step of the engine, from plan to commit."""
    plan = scheduler.plan()
    return scheduler.commit(plan, runner.launch(plan).draws())


def run(line: Line, scheduler: Scheduler, runner: Runs, early: Iterable[Any] = ()) -> None:
    """Serve until told to shut down.

    Args:
        early: messages that came before the engine was ready.

    Raises:
        ServerGone: nobody is left to serve.
        RuntimeFailure: the device failed.
    """
    inbox = list(early)
    flying: tuple[Plan, Pending] | None = None
    while True:
        inbox += line.receive(waits=scheduler.is_idle and flying is None and not inbox)
        if any(isinstance(message, Shutdown) for message in inbox):
            return
        events = _hear(scheduler, inbox)
        inbox.clear()
        landing, flying = flying, _launch(scheduler, runner)
        if not runner.overlaps:
            landing, flying = flying, None
        if landing is not None:
            plan, pending = landing
            events += scheduler.commit(plan, pending.draws())
        if events or landing is not None:
            line.send(StepOutput(tuple(events), scheduler.load))


def _launch(scheduler: Scheduler, runner: Runs) -> tuple[Plan, Pending] | None:
    """Plan and launch a step, if there is anything to run."""
    plan = scheduler.plan()
    return (plan, runner.launch(plan)) if plan else None


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
