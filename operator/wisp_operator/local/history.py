"""History of one model on this machine: its observation, and what outlives its pods.

A pod's state is lost with the pod; its failures, the lengths of wakes and the demand must stay, or a model
at zero could not report why it cannot start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wisp_operator.api import InferenceModel
from wisp_operator.core.demand import Report
from wisp_operator.core.history import ModelHistory
from wisp_operator.core.observation import Demand, Observation, ObservedPod, Phase
from wisp_operator.local.processes.pods import Pod, PodState

PHASES: dict[PodState, Phase] = {
    PodState.STARTING: "Starting",
    PodState.READY: "Ready",
    PodState.UNREADY: "Unready",
    PodState.BACKING_OFF: "BackingOff",
    PodState.STOPPED: "Draining",
}


@dataclass(kw_only=True)
class LocalHistory(ModelHistory):
    """State kept of a model between two reconciles.

    Attributes:
        created: time at which it was first served, Unix seconds.
        observed_at: time of the last observation, Unix seconds.
    """

    created: float
    observed_at: float = 0.0

    def observe(self, model: InferenceModel, pods: Sequence[Pod], demand: Report, now: float) -> Observation:
        """Record changes, and return the observation at ``now`` (Unix seconds)."""
        self.observed_at = now
        for pod in pods:
            self.record_failures(pod.name, pod.failures, pod.last_failure)
        observed = tuple(_observed_pod(pod) for pod in pods)
        self.record_ready(observed, now)
        self.retain({pod.name for pod in pods})
        self.record_demand(model, float(demand.waiting + demand.running), now)
        return Observation(
            pods=observed,
            demand=Demand(demand.waiting, demand.running, demand.idle_s, self.demand_samples, demand.traces),
            crashes=self.crashes,
            last_failure=self.last_failure,
            fit=self.fit,
            cold_start_s=self.cold_start_s,
        )

    def refresh(self, observation: Observation, pods: Sequence[Pod]) -> Observation:
        """Update an observation after pods were started or stopped."""
        after = replace(observation, pods=tuple(_observed_pod(pod) for pod in pods))
        self.record_wake(bool(observation.live), len(after.live), self.observed_at)
        return after


def _observed_pod(pod: Pod) -> ObservedPod:
    return ObservedPod(
        name=pod.name,
        phase="Draining" if pod.is_draining else PHASES[pod.state],
        created=pod.created,
        ready_since=pod.ready_since,
        restarts=pod.restarts,
        runtime=pod.runtime,
    )
