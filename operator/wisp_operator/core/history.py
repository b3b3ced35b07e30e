"""What outlives the pods of one model: how it failed, how long its wakes took, how much was asked of it.

The part that a machine and a cluster have in common; where pods come from, and what else each of them has
to remember, is for ``local.history`` and ``cluster.observation.history``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from wisp_operator.api import InferenceModel
from wisp_operator.core import autoscale
from wisp_operator.core.conditions import Condition
from wisp_operator.core.fit import FitReport
from wisp_operator.core.observation import Failure, PodFacts, Sample

REMEMBERED_STARTS = 20


@dataclass(kw_only=True)
class Memory:
    """What is kept of a model between two looks at it.

    Attributes:
        fit: the last report, None until there is one.
        history: requests in the gateway over time.
        crashes: failures in a row without a pod having become ready in between.
        last_failure: until a pod is ready again.
        cold_start_s: from leaving zero until a pod was ready, the latest last.
        woken_at: when the model last left zero, Unix seconds; None once a pod was ready.
        conditions: of the last status.
    """

    fit: FitReport | None = None
    history: tuple[Sample, ...] = ()
    crashes: int = 0
    last_failure: Failure | None = None
    cold_start_s: tuple[float, ...] = ()
    woken_at: float | None = None
    conditions: tuple[Condition, ...] = ()
    _failures: dict[str, int] = field(default_factory=dict)
    _ready_since: dict[str, float] = field(default_factory=dict)

    def note_wake(self, is_live: bool, replicas: int, now: float) -> bool:
        """Take what was decided of a model; whether it leaves zero with that.

        Args:
            is_live: whether it had pods that do not drain before.
            replicas: those it gets.
            now: Unix seconds.
        """
        if is_live:
            return False
        leaves_zero = replicas > 0 and self.woken_at is None
        if leaves_zero or replicas == 0:
            self.woken_at = now if leaves_zero else None
        return leaves_zero

    def note_failures(self, pod: str, so_far: int, failure: Failure | None) -> None:
        """Take how often a pod has failed ``so_far``, and how it did last; each failure counts once."""
        known = self._failures.get(pod, 0)
        self._failures[pod] = max(so_far, known)
        if failure is not None and so_far > known:
            self.crashes += so_far - known
            self.last_failure = failure

    def note_ready(self, pods: Sequence[PodFacts], now: float) -> None:
        """Forgive failures once a pod is ready; the first one after a wake ends the cold start."""
        if not any(pod.phase == "Ready" for pod in pods):
            return
        self.crashes, self.last_failure = 0, None
        for pod in pods:
            if pod.ready_since is None or pod.name in self._ready_since:
                continue
            self._ready_since[pod.name] = pod.ready_since
            if self.woken_at is not None:
                self.cold_start_s = (*self.cold_start_s, now - self.woken_at)[-REMEMBERED_STARTS:]
                self.woken_at = None

    def note_demand(self, model: InferenceModel, concurrency: float, now: float) -> None:
        """Take how many requests there are."""
        self.history = autoscale.remember(self.history, Sample(now, concurrency), model.spec.autoscaling)

    def forget_all_but(self, names: Collection[str]) -> None:
        """Drop what is known of pods that are gone."""
        self._failures = {name: count for name, count in self._failures.items() if name in names}
        self._ready_since = {name: at for name, at in self._ready_since.items() if name in names}
