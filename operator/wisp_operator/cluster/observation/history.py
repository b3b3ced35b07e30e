"""What outlives the pods of one model on a cluster: how it failed, how long starts took, who asked when.

A new leader begins with what the last one wrote into status; times of demand it must learn anew, so a model
that runs counts as asked for when the leader began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.cluster.observation.failures import failure_of, times_failed
from wisp_operator.cluster.observation.pods import exists, facts_of
from wisp_operator.core import history
from wisp_operator.core.conditions import Condition
from wisp_operator.core.demand import Report
from wisp_operator.core.fit import FitReport, measured
from wisp_operator.core.observation import Demand, Facts, Failure, PodFacts
from wisp_operator.core.times import seconds_of

ASK_MOUNTS_EVERY_S = 10.0
MEASURED = "measured by a pod"

Pod = Mapping[str, Any]
States = Mapping[str, Mapping[str, Any]]


@dataclass(kw_only=True)
class Memory(history.Memory):
    """What is kept of a model between two looks at it.

    Attributes:
        uid, generation: of the object and spec it speaks of.
        fit: the answer of this look; None while it is being found out.
        measured: what a pod of this spec found, for models whose files only a pod can read.
        asked_at: when a request last arrived or ran, Unix seconds.
        written, written_at: the last status written, and when.
    """

    uid: str
    generation: int
    measured: FitReport | None = None
    asked_at: float | None = None
    written: Mapping[str, Any] = field(default_factory=dict)
    written_at: float = 0.0
    _mounts_asked_at: dict[str, float] = field(default_factory=dict)
    _mounts_failed: set[str] = field(default_factory=set)
    _refusal: Failure | None = None

    @classmethod
    def recalled(
        cls, model: InferenceModel, status: Mapping[str, Any], pods: Sequence[Pod], now: float
    ) -> Memory:
        """Begin with the status that an earlier leader wrote."""
        memory = cls(uid=model.uid, generation=model.generation, conditions=_conditions(status))
        memory.written, memory.written_at = status, now
        if status.get("observedGeneration") != model.generation:
            return memory
        if status.get("fit", {}).get("basis") == MEASURED:
            memory.measured = _report(status["fit"])
        memory.cold_start_s = _cold_starts(status.get("coldStart", {}))
        if failure := status.get("lastFailure"):
            memory.last_failure = _failure(failure)
            memory.crashes = int(failure.get("count", 0))
            memory._failures = {pod["metadata"]["name"]: times_failed(pod) for pod in pods}
        return memory

    def respect(self, model: InferenceModel) -> None:
        """Give a changed spec a fresh start: how the old one failed says nothing of it."""
        if model.generation != self.generation:
            self.generation, self.crashes, self.last_failure = model.generation, 0, None
            self.measured = None

    def take(
        self, model: InferenceModel, pods: Sequence[Pod], states: States, demand: Report, now: float
    ) -> Facts:
        """Note what changed, and return everything observed at ``now`` (Unix seconds).

        Args:
            pods: as the API server shows them.
            states: the last ``/state`` of each pod, by its name.
        """
        for pod in pods:
            self._note_failure(pod, now)
        found = tuple(
            facts_of(pod, states.get(_name(pod), {}), self._ready_since.get(_name(pod)))
            for pod in pods
            if exists(pod)
        )
        found = tuple(replace(pod, phase="BackingOff") if self._is_stuck(pod) else pod for pod in found)
        self._note_measured(found)
        self.note_ready(found, now)
        self._forget(pods)
        return Facts(
            pods=found,
            demand=self._demand(model, found, demand, now),
            crashes=self.crashes,
            last_failure=self.last_failure,
            fit=self._fit(),
            cold_start_s=self.cold_start_s,
        )

    def is_due_to_ask(self, pod: str, now: float) -> bool:
        """Whether to ask (again) why the volumes of a pod are not mounted; counts as asked."""
        if now - self._mounts_asked_at.get(pod, 0.0) < ASK_MOUNTS_EVERY_S:
            return False
        self._mounts_asked_at[pod] = now
        return True

    def note_mount(self, pod: str, failure: Failure | None) -> None:
        """Take what was found about a pod's volumes; one pod fails once."""
        if failure is None:
            self._mounts_failed.discard(pod)
            return
        self.crashes += pod not in self._mounts_failed
        self._mounts_failed.add(pod)
        self.last_failure = failure

    def note_refusal(self, failure: Failure | None) -> None:
        """Take why pods are refused; the same refusal counts once."""
        if failure is not None and failure != self._refusal:
            self.crashes += 1
            self.last_failure = failure
        self._refusal = failure or self._refusal

    def _fit(self) -> FitReport | None:
        """What was computed, or where nothing could be computed what was measured."""
        is_known = self.fit is not None and self.fit.verdict != "Unknown"
        return self.fit if is_known or self.measured is None else self.measured

    def _demand(self, model: InferenceModel, pods: Sequence[PodFacts], told: Report, now: float) -> Demand:
        """Believe the gateways, and the pods where they see more: their Services are open to others too."""
        loads = [pod.runtime.get("load", {}) for pod in pods if pod.phase == "Ready"]
        at_pods = sum(int(load.get("running", 0)) + int(load.get("waiting", 0)) for load in loads)
        running = max(told.running, at_pods)
        if told.waiting + running > 0:
            self.asked_at = now
        elif told.idle_s is not None:
            self.asked_at = max(self.asked_at or 0.0, now - told.idle_s)
        elif self.asked_at is None and pods:
            self.asked_at = now
        self.note_demand(model, float(told.waiting + running), now)
        idle_s = None if self.asked_at is None else now - self.asked_at
        return Demand(told.waiting, running, idle_s, self.history)

    def _note_failure(self, pod: Pod, now: float) -> None:
        """Count a pod's failure, unless the pod was told to go: how it ends then is none."""
        is_leaving = bool(pod["metadata"].get("deletionTimestamp"))
        failure = failure_of(pod, now, was_ready=_name(pod) in self._ready_since)
        self.note_failures(_name(pod), times_failed(pod), None if is_leaving else failure)

    def _note_measured(self, pods: Sequence[PodFacts]) -> None:
        for pod in pods:
            if ledger := pod.runtime.get("ledger") if pod.phase == "Ready" else None:
                self.measured = measured(ledger, str(pod.runtime.get("device", "")))

    def _forget(self, pods: Sequence[Pod]) -> None:
        names = {_name(pod) for pod in pods}
        self.forget_all_but(names)
        self._mounts_asked_at = {n: at for n, at in self._mounts_asked_at.items() if n in names}
        self._mounts_failed &= names

    def _is_stuck(self, pod: PodFacts) -> bool:
        return pod.name in self._mounts_failed and pod.phase == "Starting" and not pod.runtime


def _name(pod: Pod) -> str:
    return str(pod["metadata"]["name"])


def _conditions(status: Mapping[str, Any]) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            found["type"],
            found["status"],
            found["reason"],
            found["message"],
            int(found.get("observedGeneration", 0)),
            found["lastTransitionTime"],
        )
        for found in status.get("conditions", ())
    )


def _cold_starts(told: Mapping[str, Any]) -> tuple[float, ...]:
    """Starts with the median and the last that were written; how many there were is not known any more."""
    if "lastSeconds" not in told:
        return ()
    median_s = float(told.get("p50Seconds", told["lastSeconds"]))
    return median_s, median_s, float(told["lastSeconds"])


def _failure(found: Mapping[str, Any]) -> Failure:
    at = seconds_of(found.get("time")) or 0.0
    return Failure(str(found["reason"]), str(found.get("message", "")), at, found.get("exitCode"))


def _report(fit: Mapping[str, Any]) -> FitReport:
    return FitReport(
        verdict=fit["verdict"],
        message=fit.get("message", ""),
        weights_bytes=int(fit.get("weightsBytes", 0)),
        kv_bytes_per_token=int(fit.get("kvBytesPerToken", 0)),
        max_context=int(fit.get("maxContext", 0)),
        max_concurrent_at_context=int(fit.get("maxConcurrentAtContext", 0)),
        headroom_bytes=int(fit.get("headroomBytes", 0)),
        gpu=fit.get("gpu", ""),
        basis=MEASURED,
    )
