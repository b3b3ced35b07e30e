"""Spans of wakes: from the demand for a model without pods to the first pod that answers, or to the failure.

Observes statuses, and decides nothing. A wake is a part of the trace of the first request that waits for it,
and is linked to those of others; without one that is sampled it is a trace of its own. Its phases are known
when it ends. Without a tracer nothing is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wisp_http.tracing import generation_attributes
from wisp_operator.api import InferenceModel
from wisp_operator.core.autoscale import Decision
from wisp_operator.core.observation import Observation, ObservedPod
from wisp_operator.core.runtime_state import PhaseReport
from wisp_operator.core.status import Status

if TYPE_CHECKING:
    from wisp_http.spans import Span, Tracer

SCHEDULE = "schedule"
MAX_LINKS = 16


@dataclass
class PodStart:
    """Start of a pod's process.

    Attributes:
        began_at: time at which its first phase began, Unix seconds.
        phases: its phases so far.
    """

    began_at: float
    phases: tuple[PhaseReport, ...]

    def update(self, phases: tuple[PhaseReport, ...], now: float) -> None:
        """Take over a report that was read by ``now``; one of less than before is of a new process.

        Of all estimates of the beginning the earliest is the closest: reports come late, and have no time
        between phases.
        """
        began_at = now - _seconds(phases)
        is_same = _seconds(phases) >= _seconds(self.phases)
        self.began_at, self.phases = min(self.began_at, began_at) if is_same else began_at, phases


@dataclass
class Wake:
    """A wake that is not over.

    Attributes:
        began_at: its beginning, Unix seconds.
        wall_offset_s: difference of Unix time and the monotonic clock, which spans have.
        starts: starts of the pods, by name.
        traces: requests that it is a part of, or linked to.
        links: number of those it is linked to.
        reason: last reason of the condition ``Ready``.
    """

    span: Span
    began_at: float
    wall_offset_s: float
    starts: dict[str, PodStart] = field(default_factory=dict)
    traces: set[str] = field(default_factory=set)
    links: int = 0
    reason: str = "Waking"

    def record(self, observation: Observation, status: Status, now: float) -> None:
        """Record an observation."""
        for pod in observation.live:
            phases = _phases(pod)
            if phases:
                unknown = PodStart(now - _seconds(phases), phases)
                self.starts.setdefault(pod.name, unknown).update(phases, now)
        for trace in observation.demand.traces:
            if trace not in self.traces and self.links < MAX_LINKS:
                self.traces.add(trace)
                self.links += 1
                self.span.link(trace)
        if status.state == "Waking" and status.reason != self.reason:
            self.reason = status.reason
            self.span.event(status.reason, now - self.wall_offset_s, {"message": status.message})

    def end(self, outcome: str, reason: str, now: float, *, pod: str = "", error: str = "") -> None:
        """End the span, with the phases of ``pod``, else of the one that got farthest."""
        farthest = max(self.starts, key=lambda name: len(self.starts[name].phases), default="")
        name = pod if pod in self.starts else farthest
        for phase, began_at, ended_at in self._phases(self.starts.get(name), now):
            attributes = {"wisp.bytes": phase.bytes} if phase.bytes else None
            child = self.span.child(phase.name, began_at - self.wall_offset_s, attributes=attributes)
            is_cause = bool(error) and not phase.is_done
            child.end(ended_at - self.wall_offset_s, error=error if is_cause else "", kind=reason)
        self.span.set({"wisp.wake.outcome": outcome, "wisp.wake.reason": reason})
        if pod or name:
            self.span.set({"wisp.pod": pod or name})
        self.span.end(now - self.wall_offset_s, error=error, kind=reason)

    def _phases(self, start: PodStart | None, now: float) -> Iterator[tuple[PhaseReport, float, float]]:
        """Yield each phase with its beginning and its end; before the process's own it is scheduled."""
        at = start.began_at if start is not None else now
        if at > self.began_at:
            yield PhaseReport(SCHEDULE, is_done=start is not None), self.began_at, at
        for phase in start.phases if start is not None else ():
            began_at, at = at, min(now, at + phase.seconds) if phase.is_done else now
            if at >= self.began_at:
                yield phase, max(began_at, self.began_at), at


class WakeSpans:
    """Spans of the wakes of every model; with no tracer it does nothing."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer
        self._wakes: dict[str, Wake] = {}

    def observe(
        self, model: InferenceModel, observation: Observation, status: Status, decision: Decision, now: float
    ) -> None:
        """Begin, continue or end the span of a model's wake by its status at ``now`` (Unix seconds)."""
        if self._tracer is None:
            return
        answering = next((pod for pod in observation.live if _answers(pod)), None)
        is_waking = status.state == "Waking" and answering is None
        if is_waking and model.key not in self._wakes:
            self._wakes[model.key] = _begin(self._tracer, model, observation, decision, now)
        wake = self._wakes.get(model.key)
        if wake is None:
            return
        wake.record(observation, status, now)
        if is_waking:
            return
        del self._wakes[model.key]
        if gpu := _device(observation, answering):
            wake.span.set({"wisp.gpu": gpu})
        if answering is not None:
            wake.end("ready", "Serving", now, pod=answering.name)
        elif status.state == "Failed":
            wake.end("failed", status.reason, now, error=status.message)
        else:
            wake.end("ended", status.reason, now)

    def forget(self, key: str) -> None:
        """End the span of a model that is gone."""
        if wake := self._wakes.pop(key, None):
            wake.end("ended", "Deleted", time.time())

    def clear(self) -> None:
        """Drop all wakes, as after another replica led."""
        self._wakes.clear()

    def close(self) -> None:
        """End every span, and export what is left, for at most two seconds."""
        for wake in self._wakes.values():
            wake.end("ended", "Stopping", time.time())
        self.clear()
        if self._tracer is not None:
            self._tracer.close()


def _begin(
    tracer: Tracer, model: InferenceModel, observation: Observation, decision: Decision, now: float
) -> Wake:
    wall_offset_s = time.time() - time.monotonic()
    first = observation.demand.traces[:1]
    attributes: dict[str, str | int] = {
        **generation_attributes("", model.key),
        "wisp.model.uri": model.spec.model.uri,
        "wisp.gpu.count": model.spec.gpu.count,
        "wisp.wake.why": decision.why,
        "wisp.wake.waiting": observation.demand.waiting,
    }
    span = tracer.begin(
        f"wake {model.key}",
        [(b"traceparent", trace.encode()) for trace in first],
        now - wall_offset_s,
        attributes,
        kind="internal",
    )
    return Wake(span, now, wall_offset_s, traces=set(first))


def _answers(pod: ObservedPod) -> bool:
    """Whether the pod answers requests, which the kubelet may not have found yet."""
    status = pod.runtime.status if pod.runtime is not None else ""
    return pod.phase == "Ready" or (pod.phase in ("Starting", "Unready") and status == "ready")


def _device(observation: Observation, pod: ObservedPod | None) -> str:
    computed = observation.fit.gpu if observation.fit is not None else ""
    reported = pod.runtime.device if pod is not None and pod.runtime is not None else ""
    return reported or computed


def _phases(pod: ObservedPod) -> tuple[PhaseReport, ...]:
    """The phases of the pod's process; its scheduling, in whole seconds, is known better here."""
    reports = pod.runtime.phases if pod.runtime is not None else ()
    return tuple(phase for phase in reports if phase.name != SCHEDULE)


def _seconds(phases: tuple[PhaseReport, ...]) -> float:
    return sum(phase.seconds for phase in phases)
