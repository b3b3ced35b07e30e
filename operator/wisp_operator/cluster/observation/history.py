"""History of one model on a cluster that outlives its pods: failures, cold starts, demand.

A new leader begins with the status that the last one wrote; times of demand are not in it, so a model that
runs counts as requested when the leader began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.cluster.observation.failures import failure_of, replica_failure, times_failed
from wisp_operator.cluster.observation.pods import Template, exists, observed_pod, ready_at
from wisp_operator.core.conditions import Condition
from wisp_operator.core.demand import Report
from wisp_operator.core.fit.verdict import FitReport, measured
from wisp_operator.core.history import ModelHistory
from wisp_operator.core.observation import Demand, Failure, Observation, ObservedPod
from wisp_operator.core.runtime_state import RuntimeState
from wisp_operator.core.times import seconds_of

MOUNT_CHECK_PERIOD_S = 5.0

Pod = Mapping[str, Any]
States = Mapping[str, RuntimeState]


@dataclass(kw_only=True)
class ClusterHistory(ModelHistory):
    """State kept of a model between two reconciles.

    Attributes:
        uid, generation: identity of the object and of its spec.
        fit: report of this reconcile; None while it is being computed.
        known_fit: report of a pod of this spec, or of an earlier leader, for when none can be computed: a pod
            alone can read the files, or their hub is away.
        pods_before: pods before the last decision took some away to make them anew; 0 if it did not.
        last_request_at: time at which a request last arrived or ran, Unix seconds.
        written, written_at: last status written, and its time.
    """

    uid: str
    generation: int
    known_fit: FitReport | None = None
    pods_before: int = 0
    last_request_at: float | None = None
    written: Mapping[str, Any] = field(default_factory=dict)
    written_at: float = 0.0
    _mounts_checked_at: dict[str, float] = field(default_factory=dict)
    _mounts_failed: set[str] = field(default_factory=set)
    _refusal: Failure | None = None

    @classmethod
    def restore(
        cls, model: InferenceModel, status: Mapping[str, Any], pods: Sequence[Pod], now: float
    ) -> ClusterHistory:
        """Restore the history from the status that an earlier leader wrote."""
        history = cls(uid=model.uid, generation=model.generation, conditions=_conditions(status))
        history.written, history.written_at = status, now
        if status.get("observedGeneration") != model.generation:
            return history
        if status.get("fit", {}).get("verdict") == "Fits":
            history.known_fit = _report(status["fit"])
        history.cold_start_s = _cold_starts(status.get("coldStart", {}))
        if failure := status.get("lastFailure"):
            history.last_failure = _failure(failure)
            history.crashes = int(failure.get("count", 0))
            history._failures = {_name(pod): times_failed(pod) for pod in pods}
            history._failing = {name: count for name, count in history._failures.items() if count}
        return history

    def reset_if_changed(self, model: InferenceModel) -> None:
        """Clear the failures of an earlier spec once the spec has changed."""
        if model.generation != self.generation:
            self.generation, self.crashes, self.last_failure = model.generation, 0, None
            self.known_fit = None

    def observe(
        self,
        model: InferenceModel,
        pods: Sequence[Pod],
        states: States,
        demand: Report,
        now: float,
        deployment: Mapping[str, Any] | None = None,
    ) -> Observation:
        """Record changes, and return the observation at ``now`` (Unix seconds).

        Args:
            pods: pods as the API server returns them.
            states: last ``/state`` of each pod, by its name.
            deployment: the model's own Deployment; None if it has none.
        """
        template = Template.of(deployment)
        is_replaced = any(template.is_of(pod) and ready_at(pod) is not None for pod in pods)
        for pod in pods:
            self._record_failure(pod, now, is_leaving=is_replaced and not template.is_of(pod))
        self._record_refusal(replica_failure(deployment, now))
        observed = tuple(
            self._with_history(observed_pod(pod, states.get(_name(pod)), self._ready_since.get(_name(pod))))
            for pod in pods
            if exists(pod)
        )
        observed = template.compared(observed, pods)
        self._record_measured(observed)
        self.record_ready(observed, now, max(template.replicas, self.pods_before))
        self._retain_only(pods)
        return Observation(
            pods=observed,
            demand=self._demand(model, observed, demand, now),
            crashes=self.crashes,
            last_failure=self.last_failure,
            fit=self._fit(),
            cold_start_s=self.cold_start_s,
        )

    def is_mount_check_due(self, pod: str, now: float) -> bool:
        """Whether to check (again) why the volumes of a pod are not mounted; True counts as checked."""
        if now - self._mounts_checked_at.get(pod, 0.0) < MOUNT_CHECK_PERIOD_S:
            return False
        self._mounts_checked_at[pod] = now
        return True

    def record_mount(self, pod: str, failure: Failure | None) -> None:
        """Record a failure of a pod's volumes, or that there is none; one pod fails once."""
        if failure is None:
            self._mounts_failed.discard(pod)
            return
        self.crashes += pod not in self._mounts_failed
        self._failing.setdefault(pod, 1)
        self._mounts_failed.add(pod)
        self.last_failure = failure

    def _record_refusal(self, failure: Failure | None) -> None:
        """Record a refusal to create pods; the same refusal counts once."""
        if failure is not None and failure != self._refusal:
            self.crashes += 1
            self.last_failure = failure
        self._refusal, self._is_refused = failure or self._refusal, failure is not None

    def _fit(self) -> FitReport | None:
        """Choose the computed report, or where none could be computed the known one."""
        is_known = self.fit is not None and self.fit.verdict != "Unknown"
        return self.fit if is_known or self.known_fit is None else self.known_fit

    def _demand(
        self, model: InferenceModel, pods: Sequence[ObservedPod], report: Report, now: float
    ) -> Demand:
        """Combine the gateways' reports with the pods' own load: their Services are open to others too."""
        loads = [pod.runtime.load for pod in pods if pod.phase == "Ready" and pod.runtime]
        at_pods = sum(load.running + load.waiting for load in loads)
        running = max(report.running, at_pods)
        if report.waiting + running > 0:
            self.last_request_at = now
        elif report.idle_s is not None:
            self.last_request_at = max(self.last_request_at or 0.0, now - report.idle_s)
        elif self.last_request_at is None and pods:
            self.last_request_at = now
        self.record_demand(model, float(report.waiting + running), now)
        idle_s = None if self.last_request_at is None else now - self.last_request_at
        return Demand(report.waiting, running, idle_s, self.demand_samples, report.traces)

    def _record_failure(self, pod: Pod, now: float, *, is_leaving: bool) -> None:
        """Count a pod's failure, unless the pod is going, or being deleted: its end is no failure then."""
        is_leaving = is_leaving or bool(pod["metadata"].get("deletionTimestamp"))
        failure = failure_of(pod, now, was_ready=_name(pod) in self._ready_since)
        self.record_failures(_name(pod), times_failed(pod), None if is_leaving else failure)

    def _record_measured(self, pods: Sequence[ObservedPod]) -> None:
        for pod in pods:
            if pod.phase == "Ready" and pod.runtime and pod.runtime.ledger:
                computed = self.fit.gpu if self.fit else ""
                self.known_fit = measured(pod.runtime.ledger, computed or _device_name(pod.runtime.device))

    def _retain_only(self, pods: Sequence[Pod]) -> None:
        names = {_name(pod) for pod in pods}
        self.retain(names)
        self._mounts_checked_at = {n: at for n, at in self._mounts_checked_at.items() if n in names}
        self._mounts_failed &= names

    def _with_history(self, pod: ObservedPod) -> ObservedPod:
        """Correct the phase of a pod by what was recorded of it."""
        if pod.name in self._mounts_failed and pod.phase == "Starting" and not pod.runtime:
            return replace(pod, phase="BackingOff")
        is_first_failure = self._failing.get(pod.name) == 1  # since it was ready
        if pod.phase == "Unready" and is_first_failure:
            return replace(pod, phase="Restarting")
        if pod.phase == "Restarting" and not is_first_failure:
            return replace(pod, phase="BackingOff")
        return pod


def _device_name(device: str) -> str:
    """A device of ``/state`` as fit reports name it."""
    return "CPU" if device == "cpu" else device


def _name(pod: Pod) -> str:
    return str(pod["metadata"]["name"])


def _conditions(status: Mapping[str, Any]) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            entry["type"],
            entry["status"],
            entry["reason"],
            entry["message"],
            int(entry.get("observedGeneration", 0)),
            entry["lastTransitionTime"],
        )
        for entry in status.get("conditions", ())
    )


def _cold_starts(report: Mapping[str, Any]) -> tuple[float, ...]:
    """Restore cold starts with the written median and last value; their number is not in the status."""
    if "lastSeconds" not in report:
        return ()
    median_s = float(report.get("p50Seconds", report["lastSeconds"]))
    return median_s, median_s, float(report["lastSeconds"])


def _failure(entry: Mapping[str, Any]) -> Failure:
    at = seconds_of(entry.get("time")) or 0.0
    return Failure(str(entry["reason"]), str(entry.get("message", "")), at, entry.get("exitCode"))


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
        basis=fit.get("basis", ""),
    )
