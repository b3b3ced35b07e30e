"""The engine's round: hear what came, run a step, tell what it gave. Sleeps when there is nothing to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from wisp_runtime.engine.messages import Abort, Shutdown, StepOutput, Submit, TokenEvent
from wisp_runtime.engine.plan import Draw, Plan
from wisp_runtime.engine.scheduler import Scheduler


class Steps(Protocol):
    """What runs a plan; :class:`.runner.Runner` is the real one."""

    def step(self, plan: Plan) -> list[Draw]:
        """Compute the plan's chunks; one draw per chunk that samples."""
        ...


class Line(Protocol):
    """What connects to the server; :class:`.pipe.Pipe` is the real one."""

    def send(self, message: Any) -> None:
        """Send one message."""
        ...

    def receive(self, *, waits: bool) -> list[Any]:
        """Return what has come."""
        ...


def step(scheduler: Scheduler, runner: Steps) -> list[TokenEvent]:
    """Run one step of the engine."""
    plan = scheduler.plan()
    draws = runner.step(plan)
    return scheduler.commit(plan, draws)


def run(line: Line, scheduler: Scheduler, runner: Steps, early: Iterable[Any] = ()) -> None:
    """Serve until told to shut down.

    Args:
        early: messages that came before the engine was ready.

    Raises:
        ServerGone: nobody is left to serve.
    """
    inbox = list(early)
    while True:
        inbox += line.receive(waits=scheduler.is_idle and not inbox)
        if any(isinstance(message, Shutdown) for message in inbox):
            return
        events = _hear(scheduler, inbox)
        inbox.clear()
        if not scheduler.is_idle:
            line.send(StepOutput((*events, *step(scheduler, runner)), scheduler.load))
        elif events:
            line.send(StepOutput(tuple(events), scheduler.load))


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
