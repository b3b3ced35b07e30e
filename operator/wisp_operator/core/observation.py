"""What was observed of one model: its pods, the demand for it, how it last failed.

Pure data: a cluster (of one machine, or Kubernetes) fills it in, :mod:`.autoscale` decides on it and
:mod:`.status` tells it. Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from wisp_operator.core.fit import FitReport

Phase = Literal["Pending", "Starting", "Ready", "Unready", "BackingOff", "Draining"]


@dataclass(frozen=True, slots=True)
class Failure:
    """How a pod last ended badly: from its termination log, or from its exit code.

    Attributes:
        reason: in one word, e.g. ``DoesNotFit`` or ``Killed``.
        message: the sentence that the pod left.
        at: when, Unix seconds.
        exit_code: of the process, if it is known.
        details: the numbers of a termination log.
    """

    reason: str
    message: str
    at: float
    exit_code: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod.

    Attributes:
        name: of the pod, or of the local process.
        phase: Pending (no node yet), Starting, Ready, Unready (was ready, its probe fails now), BackingOff
            (ended, will be started again) or Draining (finishes what it runs, takes nothing new).
        created: when, Unix seconds.
        ready_since: when it first became ready; None if it never was.
        restarts: how often its process was started again.
        runtime: its last ``/state``; empty until it gave one.
        pending_message: why it has no node, in the scheduler's words.
    """

    name: str
    phase: Phase
    created: float = 0.0
    ready_since: float | None = None
    restarts: int = 0
    runtime: Mapping[str, Any] = field(default_factory=dict)
    pending_message: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """Requests in the gateway, waiting and running, at one moment."""

    at: float
    concurrency: float


@dataclass(frozen=True, slots=True)
class Demand:
    """What the gateways last reported, summed.

    Attributes:
        waiting, running: requests held, and requests at a pod.
        idle_s: seconds since a request last arrived or ran; None if there never was one.
        history: samples of ``waiting + running``, oldest first; :func:`.autoscale.remember` keeps it short.
    """

    waiting: int = 0
    running: int = 0
    idle_s: float | None = None
    history: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything observed of one model.

    Attributes:
        pods: all of them, those that drain included.
        crashes: how often in a row a pod ended without one having become ready in between.
        last_failure: kept while the model is at zero, until a pod is ready again.
        fit: what :func:`.fit.check` said, or None if it has not been asked.
        cold_start_s: length of recent cold starts in seconds, oldest first.
        url: where clients reach the model.
        prefetch: how far the Jobs are that fetch its weights ahead; None without any.
    """

    pods: tuple[PodFacts, ...] = ()
    demand: Demand = field(default_factory=Demand)
    crashes: int = 0
    last_failure: Failure | None = None
    fit: FitReport | None = None
    cold_start_s: tuple[float, ...] = ()
    url: str = ""
    prefetch: Literal["Running", "Done", "Failed"] | None = None

    @property
    def live(self) -> tuple[PodFacts, ...]:
        """The pods that do not drain."""
        return tuple(pod for pod in self.pods if pod.phase != "Draining")

    @property
    def ready(self) -> tuple[PodFacts, ...]:
        """The pods that take requests."""
        return tuple(pod for pod in self.pods if pod.phase == "Ready")
