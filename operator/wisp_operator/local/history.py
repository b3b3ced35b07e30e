"""What is known of one model on this machine: its pods as facts, and what outlives them.

A pod that is gone takes its state with it; how it failed, how long wakes took and who asked when must
stay, or a model at zero would forget why it cannot start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wisp_operator.api import InferenceModel
from wisp_operator.core import history
from wisp_operator.core.demand import Report
from wisp_operator.core.observation import Demand, Facts, Phase, PodFacts
from wisp_operator.local.processes.pods import Pod, PodState

PHASES: dict[PodState, Phase] = {
    PodState.STARTING: "Starting",
    PodState.READY: "Ready",
    PodState.UNREADY: "Unready",
    PodState.BACKING_OFF: "BackingOff",
    PodState.STOPPED: "Draining",
}


@dataclass(kw_only=True)
class Memory(history.Memory):
    """What is kept of a model between two looks at it.

    Attributes:
        created: when it was first seen, Unix seconds.
        looked_at: the last time.
    """

    created: float
    looked_at: float = 0.0

    def take(self, model: InferenceModel, pods: Sequence[Pod], demand: Report, now: float) -> Facts:
        """Note what changed, and return everything observed at ``now`` (Unix seconds)."""
        self.looked_at = now
        for pod in pods:
            self.note_failures(pod.name, pod.failures, pod.last_failure)
        found = tuple(_facts(pod) for pod in pods)
        self.note_ready(found, now)
        self.forget_all_but({pod.name for pod in pods})
        self.note_demand(model, float(demand.waiting + demand.running), now)
        return Facts(
            pods=found,
            demand=Demand(demand.waiting, demand.running, demand.idle_s, self.history),
            crashes=self.crashes,
            last_failure=self.last_failure,
            fit=self.fit,
            cold_start_s=self.cold_start_s,
        )

    def again(self, facts: Facts, pods: Sequence[Pod]) -> Facts:
        """The same facts after pods were started or told to stop."""
        after = replace(facts, pods=tuple(_facts(pod) for pod in pods))
        self.note_wake(bool(facts.live), len(after.live), self.looked_at)
        return after


def _facts(pod: Pod) -> PodFacts:
    return PodFacts(
        name=pod.name,
        phase="Draining" if pod.is_draining else PHASES[pod.state],
        created=pod.created,
        ready_since=pod.ready_since,
        restarts=pod.restarts,
        runtime=pod.runtime,
    )
