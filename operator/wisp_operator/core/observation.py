"""Observation of one model: its pods, the demand for it, its last failure.

Pure data: a cluster (of one machine, or Kubernetes) fills it in, :mod:`.autoscale` decides on it and
:mod:`.status` reports it. Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from wisp_operator.core.fit.verdict import FitReport
from wisp_operator.core.naming.grants import Grant
from wisp_operator.core.runtime_state import RuntimeState

Phase = Literal["Pending", "Starting", "Ready", "Unready", "Restarting", "BackingOff", "Draining"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A pod's failure, from its termination log or from its exit code.

    Attributes:
        reason: one word, e.g. ``DoesNotFit`` or ``Killed``.
        message: sentence for the user.
        at: time of the failure, Unix seconds.
        exit_code: exit code of the process, if it is known.
        details: numbers of a termination log.
    """

    reason: str
    message: str
    at: float
    exit_code: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlockedChild:
    """An object of the model that cannot be made or changed.

    Attributes:
        kind, name: identity of the object.
        reason: ``NameTaken`` (there is one that is not the model's) or ``ChildRefused`` (by the API server).
        message: sentence for the user.
        is_absent: true if the model has no such object at all, so that it lacks what the object does.
        is_passing: true if the cluster will resolve it within moments; then it is no news for the user.
    """

    kind: str
    name: str
    reason: str
    message: str
    is_absent: bool = True
    is_passing: bool = False


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """One pod.

    Attributes:
        name: name of the pod, or of the local process.
        phase: Pending (no node yet), Starting, Ready, Unready (was ready, its probe fails now), Restarting
            (ended after it was ready, and is started again at once), BackingOff (ended, will be started again
            later) or Draining (finishes what it runs, takes nothing new).
        created: time of creation, Unix seconds.
        ready_since: time at which it first became ready; None if it never was.
        restarts: number of restarts of its process.
        runtime: last ``/state``; None before the first.
        pending_message: the scheduler's message about a pod without a node.
        is_outdated: true if its template is not the one that its Deployment has now.
        outgrew_given_limit: true if it last ended for a memory limit that its Deployment does not name, such
            as the default of a LimitRange: a new pod may get another.
    """

    name: str
    phase: Phase
    created: float = 0.0
    ready_since: float | None = None
    restarts: int = 0
    runtime: RuntimeState | None = None
    pending_message: str = ""
    is_outdated: bool = False
    outgrew_given_limit: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """Requests in the gateway, waiting and running, at one moment."""

    at: float
    concurrency: float


@dataclass(frozen=True, slots=True)
class Demand:
    """Sum of the gateways' last reports.

    Attributes:
        waiting, running: requests held, and requests at a pod.
        idle_s: seconds since a request last arrived or ran; None if there never was one.
        history: bounded samples of ``waiting + running``, oldest first (:func:`.autoscale.append_sample`).
        traces: ``traceparent`` of the first waiting requests whose spans are kept.
    """

    waiting: int = 0
    running: int = 0
    idle_s: float | None = None
    history: tuple[Sample, ...] = ()
    traces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything observed of one model.

    Attributes:
        pods: all pods, those that drain included.
        crashes: crashes in a row, without a pod having become ready in between.
        last_failure: last failure; kept while the model is at zero, until a pod is ready again.
        fit: report of :func:`.fit.check`; None before the first check.
        cold_start_s: length of recent cold starts in seconds, oldest first.
        url: base URL of the model for clients.
        prefetch: progress of the Jobs that prefetch its weights; None without any.
        blocked: children that cannot be made or changed.
        grant: bare names that it holds; None before the decision.
    """

    pods: tuple[ObservedPod, ...] = ()
    demand: Demand = field(default_factory=Demand)
    crashes: int = 0
    last_failure: Failure | None = None
    fit: FitReport | None = None
    cold_start_s: tuple[float, ...] = ()
    url: str = ""
    prefetch: Literal["Running", "Done", "Failed"] | None = None
    blocked: tuple[BlockedChild, ...] = ()
    grant: Grant | None = None

    @property
    def live(self) -> tuple[ObservedPod, ...]:
        """The pods that do not drain."""
        return tuple(pod for pod in self.pods if pod.phase != "Draining")

    @property
    def served_names(self) -> tuple[str | None, ...]:
        """Served name of each pod that does not drain; None: it has not reported one yet."""
        return tuple(pod.runtime.model if pod.runtime else None for pod in self.live)

    @property
    def ready(self) -> tuple[ObservedPod, ...]:
        """The pods that take requests."""
        return tuple(pod for pod in self.pods if pod.phase == "Ready")
