"""Log of the last wakes: begin, phases and outcome of each; has no clock of its own.

Observed each second, and four times as often while a page is open and a model wakes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from wisp_gateway.inbound.client import Client
from wisp_gateway.reporting.feed.documents import is_waking, start_phases
from wisp_gateway.reporting.feed.pod_reader import PodReader
from wisp_gateway.routing.model_state import ModelState

ANSWER = "answer"
"""Phase from a wake's end to its first answer: no part of the wake's time, and known later, if at all."""
OUTCOMES = ("ready", "failed", "abandoned")
"""Ends of a wake; one that runs has ``running`` in their place."""
MAX_WAKES = 20
MAX_OPEN = 200
READ_S = 5.0  # time after a wake's end in which the phases of its pod are read


@dataclass
class Wake:
    """One wake; times of ``began_s`` and ``ended_s`` are monotonic.

    Attributes:
        began: Unix time.
        before: the state's ``last_wake`` when it began.
    """

    state: ModelState
    began_s: float
    began: float
    before: tuple[float, float] | None
    seconds: float = 0.0
    phases: list[dict[str, Any]] = field(default_factory=list)
    outcome: str = "running"
    reason: str = ""
    ended_s: float | None = None

    def row(self) -> dict[str, Any]:
        """Return the wake as pages read it."""
        return {
            "key": self.state.model.key,
            "began": round(self.began, 3),
            "seconds": round(self.seconds, 3),
            "phases": [{"name": phase["name"], "seconds": phase["seconds"]} for phase in self.phases],
            "outcome": self.outcome,
            "reason": self.reason,
        }


class WakeLog:
    """Wakes of all models; the last are kept.

    Args:
        on_end: callback with the row of a wake that ended, unless its model was deleted.
    """

    def __init__(self, pods: PodReader, on_end: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        self._pods = pods
        self._on_end = on_end
        self._open: dict[ModelState, Wake] = {}
        self._ended: deque[Wake] = deque(maxlen=MAX_WAKES)
        self._seen: dict[ModelState, tuple[float, float] | None] = {}

    @property
    def is_any_running(self) -> bool:
        """True while a model wakes, or the phases of one that woke are being read."""
        return bool(self._open)

    def rows(self) -> list[dict[str, Any]]:
        """Return the last wakes, oldest first, those that run at the end."""
        wakes = [*self._ended, *self._open.values()]
        return [wake.row() for wake in wakes[-MAX_WAKES:]]

    def observe(self, states: Iterable[ModelState], now_s: float, now: float) -> list[dict[str, Any]]:
        """Record wakes that began, went on or ended; return the rows that changed.

        Args:
            now_s: time by the states' clock.
            now: Unix time.
        """
        changed: list[Wake] = []
        for state in states:
            wake = self._open.get(state)
            if wake is None:
                wake = self._begun(state, now_s, now)
            if wake is not None:
                self._follow(wake, now_s)
                changed.append(wake)
        changed += [self._delete(state, now_s) for state in list(self._open) if state.is_closed]
        self._seen = {state: seen for state, seen in self._seen.items() if not state.is_closed}
        return [wake.row() for wake in changed]

    def first_answer(self, state: ModelState, client: Client) -> dict[str, Any] | None:
        """Add the time from a wake's end to the first token of its first request; return the row, or None."""
        usage = client.usage
        wakes = [wake for wake in [*self._ended, *self._open.values()] if wake.state is state]
        if not wakes or usage is None or usage.first_token_s is None:
            return None
        wake = wakes[-1]
        has_one = any(phase["name"] == ANSWER for phase in wake.phases)
        if wake.outcome != "ready" or wake.ended_s is None or client.entered_s > wake.ended_s or has_one:
            return None
        seconds = client.entered_s + usage.first_token_s - wake.ended_s
        wake.phases.append({"name": ANSWER, "seconds": round(max(0.0, seconds), 3)})
        return wake.row()

    def _begun(self, state: ModelState, now_s: float, now: float) -> Wake | None:
        """Return the wake that began, or began and ended, since the last call."""
        past, self._seen[state] = self._seen.get(state), state.last_wake
        if len(self._open) >= MAX_OPEN:
            return None
        if state.last_wake is not None and state.last_wake != past:
            wake = Wake(state, state.last_wake[0], now - now_s + state.last_wake[0], past)
        elif is_waking(state):
            asked_s = now_s if state.wake_began_s is None else state.wake_began_s
            began_s = max([asked_s, *(wake.ended_s or 0.0 for wake in self._ended if wake.state is state)])
            wake = Wake(state, began_s, now - now_s + began_s, state.last_wake)
        else:
            return None
        self._open[state] = wake
        return wake

    def _follow(self, wake: Wake, now_s: float) -> None:
        state = wake.state
        if wake.ended_s is not None:
            self._read(wake, now_s)
            return
        if is_waking(state) and state.last_wake == wake.before:
            wake.seconds, wake.phases = now_s - wake.began_s, start_phases(state, self._pods, now_s)
            return
        self._end(wake, now_s)

    def _end(self, wake: Wake, now_s: float) -> None:
        state, last = wake.state, wake.state.last_wake
        self._seen[state] = last
        is_woken = last is not None and last != wake.before  # its pod may be stopped again since
        wake.ended_s = last[1] if last is not None and is_woken else now_s
        wake.seconds = wake.ended_s - wake.began_s
        if state.ready or is_woken:
            wake.outcome = "ready"
            self._pods.read_once(state)
            return
        is_failed = state.model.state == "Failed"
        wake.outcome, wake.reason = ("failed", state.model.reason) if is_failed else ("abandoned", "")
        self._close(wake)

    def _read(self, wake: Wake, now_s: float) -> None:
        """Take the phases of the pod that made it ready, once they were read; give up after a time."""
        assert wake.ended_s is not None
        if wake.state.last_wake is not None and wake.state.last_wake[1] > wake.ended_s:
            self._close(wake)  # a later wake is over: the pods are that one's
            return
        readings = self._pods.of_woken(wake.state)
        details = [reading.details for reading in readings if reading.read_s >= wake.ended_s]
        if details and details[0] is not None:
            before_s = max(0.0, wake.seconds - details[0].started_s)
            phases = [{"name": phase.name, "seconds": phase.seconds} for phase in details[0].phases]
            answer = [phase for phase in wake.phases if phase["name"] == ANSWER]
            wake.phases = [{"name": "schedule", "seconds": round(before_s, 3)}, *phases, *answer]
        if details or now_s - wake.ended_s > READ_S:
            self._close(wake)

    def _close(self, wake: Wake) -> None:
        self._open.pop(wake.state, None)
        self._ended.append(wake)
        self._on_end(wake.row())

    def _delete(self, state: ModelState, now_s: float) -> Wake:
        """End the wake of a model that was deleted; no metrics of one are kept."""
        wake = self._open.pop(state)
        if wake.ended_s is None:
            wake.outcome, wake.ended_s, wake.seconds = "abandoned", now_s, now_s - wake.began_s
        self._ended.append(wake)
        return wake
