"""What is known of one model on this machine: its pods as facts, and what outlives them.

A pod that is gone takes its state with it; how it failed, how long starts took and who asked when must
stay, or a model at zero would forget why it cannot start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from wisp_operator import autoscale
from wisp_operator.api import InferenceModel
from wisp_operator.conditions import Condition
from wisp_operator.demand import Report
from wisp_operator.facts import Demand, Facts, Failure, Phase, PodFacts, Sample
from wisp_operator.fit import FitReport
from wisp_operator.local.pods import Pod, PodState

REMEMBERED_STARTS = 20
PHASES: dict[PodState, Phase] = {
    PodState.STARTING: "Starting",
    PodState.READY: "Ready",
    PodState.UNREADY: "Unready",
    PodState.BACKING_OFF: "BackingOff",
    PodState.STOPPED: "Draining",
}


@dataclass
class Memory:
    """What is kept of a model between two looks at it.

    Attributes:
        created: when it was first seen, Unix seconds.
        fit: the last report, None until one was asked for.
        history: requests in the gateway over time.
        crashes: endings in a row without a pod having become ready in between.
        last_failure: until a pod is ready again.
        cold_start_s: from the start of a pod until it was ready, the latest last.
        conditions: of the last status.
    """

    created: float
    fit: FitReport | None = None
    history: tuple[Sample, ...] = ()
    crashes: int = 0
    last_failure: Failure | None = None
    cold_start_s: tuple[float, ...] = ()
    conditions: tuple[Condition, ...] = ()
    _endings: dict[str, int] = field(default_factory=dict)
    _timed: set[str] = field(default_factory=set)

    def take(self, model: InferenceModel, pods: Sequence[Pod], demand: Report, now: float) -> Facts:
        """Note what changed, and return everything observed at ``now`` (Unix seconds)."""
        for pod in pods:
            self._note_endings(pod)
        if any(pod.state == PodState.READY for pod in pods):
            self.crashes, self.last_failure = 0, None
            self._note_starts(pods)
        self._forget(pods)
        sample = Sample(now, float(demand.waiting + demand.running))
        self.history = autoscale.remember(self.history, sample, model.spec.autoscaling)
        return Facts(
            pods=tuple(_facts(pod) for pod in pods),
            demand=Demand(demand.waiting, demand.running, demand.idle_s, self.history),
            crashes=self.crashes,
            last_failure=self.last_failure,
            fit=self.fit,
            cold_start_s=self.cold_start_s,
        )

    def again(self, facts: Facts, pods: Sequence[Pod]) -> Facts:
        """The same facts after pods were started or told to stop."""
        return replace(facts, pods=tuple(_facts(pod) for pod in pods))

    def _note_endings(self, pod: Pod) -> None:
        fresh = pod.failures - self._endings.get(pod.name, 0)
        self._endings[pod.name] = pod.failures
        if fresh > 0 and pod.last_failure is not None:
            self.crashes += fresh
            self.last_failure = pod.last_failure

    def _note_starts(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            if pod.ready_since is not None and pod.name not in self._timed:
                self._timed.add(pod.name)
                took_s = pod.ready_since - pod.created
                self.cold_start_s = (*self.cold_start_s, took_s)[-REMEMBERED_STARTS:]

    def _forget(self, pods: Sequence[Pod]) -> None:
        names = {pod.name for pod in pods}
        self._endings = {name: count for name, count in self._endings.items() if name in names}
        self._timed &= names


def _facts(pod: Pod) -> PodFacts:
    return PodFacts(
        name=pod.name,
        phase="Draining" if pod.is_draining else PHASES[pod.state],
        created=pod.created,
        ready_since=pod.ready_since,
        restarts=pod.restarts,
        runtime=pod.runtime,
    )
