"""History of one model that outlives its pods: failures, cold starts, demand.

The part that a machine and a cluster share; ``local.history`` and ``cluster.observation.history`` add how
each of them observes pods.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from wisp_operator.api import InferenceModel
from wisp_operator.core import autoscale
from wisp_operator.core.conditions import Condition
from wisp_operator.core.fit.verdict import FitReport
from wisp_operator.core.observation import Failure, ObservedPod, Sample

MAX_COLD_STARTS = 20


@dataclass(kw_only=True)
class ModelHistory:
    """State kept of a model between two reconciles.

    Attributes:
        fit: last report; None until there is one.
        demand_samples: requests in the gateway over time.
        crashes: failures in a row that are not forgiven (:meth:`record_ready`).
        last_failure: the last of them; None once they are forgiven.
        cold_start_s: seconds from leaving zero until a pod answered, the latest last.
        woken_at: time at which the model last left zero, Unix seconds; None once a pod answers.
        conditions: conditions of the last status.
    """

    fit: FitReport | None = None
    demand_samples: tuple[Sample, ...] = ()
    crashes: int = 0
    last_failure: Failure | None = None
    cold_start_s: tuple[float, ...] = ()
    woken_at: float | None = None
    conditions: tuple[Condition, ...] = ()
    _failures: dict[str, int] = field(default_factory=dict)
    _ready_since: dict[str, float] = field(default_factory=dict)
    _failing: dict[str, int] = field(default_factory=dict)  # failures of a pod since it was last ready
    _ready: frozenset[str] = frozenset()  # pods that were ready at the last observation
    _is_refused: bool = False  # whether pods cannot be created now

    def record_wake(self, is_live: bool, replicas: int, now: float) -> bool:
        """Record a decision; return whether the model leaves zero with it.

        Args:
            is_live: true if the model already had pods that do not drain.
            replicas: decided number of pods.
            now: Unix seconds.
        """
        if is_live:
            return False
        leaves_zero = replicas > 0 and self.woken_at is None
        if leaves_zero or replicas == 0:
            self.woken_at = now if leaves_zero else None
        return leaves_zero

    def record_failures(self, pod: str, so_far: int, failure: Failure | None) -> None:
        """Record that a pod has failed ``so_far`` times, with its last failure; each counts once."""
        known = self._failures.get(pod, 0)
        self._failures[pod] = max(so_far, known)
        if failure is not None and so_far > known:
            self._failing[pod] = self._failing.get(pod, 0) + so_far - known
            self.crashes += so_far - known
            self.last_failure = failure

    def record_ready(self, pods: Sequence[ObservedPod], now: float, wanted: int | None = None) -> None:
        """Forgive failures, and end the cold start with the first pod that answers after a wake.

        A pod answers once its runtime says that it is ready: gateways do not wait for the kubelet to say so.

        Failures are forgiven once no pod that failed is without readiness still, and a pod became ready, or
        all are. A pod that was ready all along proves nothing: it may be of an earlier template. A failing
        one of an earlier template is on its way out.

        Args:
            wanted: pods that should exist; None if those that exist are as many.
        """
        if self.woken_at is not None and any(self._answers_first(pod) for pod in pods):
            self.cold_start_s = (*self.cold_start_s, now - self.woken_at)[-MAX_COLD_STARTS:]
            self.woken_at = None
        live = {pod.name for pod in pods if pod.phase != "Draining"}
        ready = frozenset(pod.name for pod in pods if pod.phase == "Ready")
        became_ready = bool(ready - self._ready or ready & self._failing.keys())
        self._ready = ready
        self._failing = {name: count for name, count in self._failing.items() if name in live - ready}
        is_settled = live == ready and len(ready) >= (wanted or 0)
        if not ready:
            return
        outdated = {pod.name for pod in pods if pod.is_outdated}
        is_failing = self._is_refused or bool(self._failing.keys() - outdated)
        if not is_failing and (became_ready or is_settled):
            self.crashes, self.last_failure = 0, None
        for pod in pods:
            if pod.ready_since is not None:
                self._ready_since.setdefault(pod.name, pod.ready_since)

    def _answers_first(self, pod: ObservedPod) -> bool:
        """Whether the pod answers requests, and was not known to before."""
        says_ready = pod.phase != "Draining" and pod.runtime is not None and pod.runtime.status == "ready"
        return pod.name not in self._ready_since and (says_ready or pod.ready_since is not None)

    def record_demand(self, model: InferenceModel, concurrency: float, now: float) -> None:
        """Record the number of requests waiting and running."""
        self.demand_samples = autoscale.append_sample(
            self.demand_samples, Sample(now, concurrency), model.spec.autoscaling
        )

    def retain(self, names: Collection[str]) -> None:
        """Drop every pod that is not among ``names``."""
        self._failures = {name: count for name, count in self._failures.items() if name in names}
        self._ready_since = {name: at for name, at in self._ready_since.items() if name in names}
