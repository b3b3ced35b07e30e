"""Build the status of a model from its observation.

Pure: observation and the autoscaler's decision in, the complete ``status`` out, written once a reconcile.
The conditions are in :mod:`.status_rules`; the numbers around them are here.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from wisp_operator.api import InferenceModel
from wisp_operator.api.schema_parser import api_name
from wisp_operator.core.autoscale import Decision
from wisp_operator.core.conditions import Condition, condition, shortened, with_times
from wisp_operator.core.fit.verdict import FitReport, measured
from wisp_operator.core.observation import Failure, Observation, ObservedPod
from wisp_operator.core.runtime_state import PhaseReport
from wisp_operator.core.status_rules import model_conditions, model_state
from wisp_operator.core.times import timestamp
from wisp_operator.desired.labels import selector_text
from wisp_operator.errors import Problem

State = Literal["Asleep", "Waking", "Ready", "Failed", "Suspended"]
MAX_ERROR_CHARS = 1024
PHASES = ("schedule", "import", "pull", "weights", "kernels", "firstToken")


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds that each phase of the last start took; None where it is not known."""

    schedule: float | None = None
    import_: float | None = None
    pull: float | None = None
    weights: float | None = None
    kernels: float | None = None
    first_token: float | None = None


@dataclass(frozen=True, slots=True)
class ColdStarts:
    """``status.coldStart``: length of recent cold starts, in seconds."""

    last_seconds: float | None = None
    p50_seconds: float | None = None
    phases: Phases = field(default_factory=Phases)


@dataclass(frozen=True, slots=True)
class Performance:
    """``status.performance``: load of the pods now, summed or averaged over them."""

    tokens_per_second: float = 0.0
    kv_cache_use_percent: int = 0
    prefix_cache_hit_percent: int = 0


@dataclass(frozen=True, slots=True)
class Queue:
    """``status.queue``: requests held at the gateway, and requests at a pod."""

    waiting: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class LastFailure:
    """``status.lastFailure``: last failure of a pod; kept while the model is at zero."""

    reason: str
    message: str
    time: str
    exit_code: int | None = None
    count: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """``status`` of an InferenceModel, field for field."""

    state: State
    observed_generation: int = 0
    url: str = ""
    selector: str = ""
    replicas: int = 0
    ready_replicas: int = 0
    desired_replicas: int = 0
    pods: str = ""
    fit: FitReport | None = None
    cold_start: ColdStarts = field(default_factory=ColdStarts)
    performance: Performance = field(default_factory=Performance)
    queue: Queue = field(default_factory=Queue)
    last_failure: LastFailure | None = None
    names: tuple[str, ...] = ()
    refused_names: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def condition(self, kind: str) -> Condition:
        """The condition of this type."""
        return next(condition for condition in self.conditions if condition.type == kind)

    @property
    def reason(self) -> str:
        """The reason column: why the model is ready or not."""
        return self.condition("Ready").reason

    @property
    def message(self) -> str:
        """The message column: the same in a sentence."""
        return self.condition("Ready").message

    def to_dict(self) -> dict[str, Any]:
        """Write the status as the API spells it, without what is not known."""
        document: dict[str, Any] = _plain(self)
        return document


def summarise(
    model: InferenceModel,
    observation: Observation,
    decision: Decision,
    now: float,
    previous: Sequence[Condition] = (),
) -> Status:
    """Build the status.

    Args:
        model: model as the user wrote it.
        observation: current observation.
        decision: the autoscaler's decision on the same observation.
        now: Unix seconds.
        previous: conditions of the last status, for the times at which they changed.
    """
    return Status(
        state=model_state(model, observation, decision),
        observed_generation=model.generation,
        url=observation.url,
        selector=selector_text(model),
        replicas=len(observation.pods),
        ready_replicas=len(observation.ready),
        desired_replicas=decision.replicas,
        pods=f"{len(observation.ready)}/{_wanted(observation, decision)}",
        fit=_fit(observation),
        cold_start=_cold_starts(observation),
        performance=_performance(observation.ready),
        queue=Queue(observation.demand.waiting, observation.demand.running),
        last_failure=_last_failure(observation.last_failure, observation.crashes),
        names=observation.grant.names if observation.grant else (),
        refused_names=observation.grant.refused if observation.grant else (),
        conditions=with_times(
            model_conditions(model, observation, decision), previous, model.generation, now
        ),
    )


def _wanted(observation: Observation, decision: Decision) -> int:
    """Pods that exist or should; one where a failure keeps the first from being made."""
    is_put_off = decision.why in ("CrashBackOff", "Replace")
    return max(len(observation.live), decision.replicas, int(is_put_off))


def invalid_status(
    problems: Sequence[Problem], generation: int, now: float, previous: Sequence[Condition] = ()
) -> Status:
    """Build the status of an object that cannot be read, as when the CRD and the operator differ in age."""
    return refused_status("Invalid", "; ".join(map(str, problems)), generation, now, previous)


def refused_status(
    reason: str, message: str, generation: int, now: float, previous: Sequence[Condition] = ()
) -> Status:
    """Build the status of a model that is not served at all, for ``reason``."""
    conditions = [
        condition("Accepted", "False", reason, message),
        condition("Ready", "False", reason, message),
    ]
    return Status("Failed", generation, conditions=with_times(conditions, previous, generation, now))


def unchecked_status(generation: int, now: float) -> Status:
    """Build the first status of a model whose fit takes long to check; nothing is made for it yet."""
    message = "Whether the model fits is being checked; where its files lie has not answered yet."
    conditions = [
        condition("Accepted", "True", "Accepted"),
        condition("Fits", "Unknown", "FitUnknown", message),
        condition("Ready", "False", "FitUnknown", message),
    ]
    return Status("Waking", generation, conditions=with_times(conditions, (), generation, now))


def failed_status(
    written: Mapping[str, Any], error: Exception, generation: int, now: float
) -> dict[str, Any]:
    """Return the status written last, with a Degraded condition: the operator cannot process the object."""
    message = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
    failure = condition("Degraded", "True", "ReconcileFailed", message)
    kept = [entry for entry in written.get("conditions", ()) if entry["type"] != "Degraded"]
    before = [entry for entry in written.get("conditions", ()) if entry["type"] == "Degraded"]
    conditions = [failure] if kept else [failure, condition("Ready", "False", "ReconcileFailed", message)]
    added: list[dict[str, Any]] = _plain(with_times(conditions, (), generation, now))
    if before and before[0].get("status") == "True":
        added[0]["lastTransitionTime"] = before[0]["lastTransitionTime"]
    return {"state": "Failed", **written, "conditions": [*kept, *added]}


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a waking model: its phase, and the share of bytes done if the phase reads any."""

    phase: str
    fraction: float | None = None


def progress(observation: Observation) -> Progress | None:
    """Report the progress of the foremost starting pod; None if none is starting."""
    starting = [pod for pod in observation.live if pod.phase in ("Pending", "Starting", "Restarting")]
    if not starting:
        return None
    pod = max(starting, key=lambda pod: len(_done(pod)))
    if pod.phase == "Pending":
        return Progress("schedule")
    active = next((phase for phase in _phases(pod) if not phase.is_done), None)
    if active is None:
        return Progress("import")
    total = active.total_bytes
    return Progress(active.name, min(1.0, active.bytes / total) if total else None)


def _fit(observation: Observation) -> FitReport | None:
    """Choose the measurement of a ready pod; without one, the computed report."""
    ledgers = [pod.runtime.ledger for pod in observation.ready if pod.runtime and pod.runtime.ledger]
    if ledgers:
        return measured(ledgers[0], observation.fit.gpu if observation.fit else "")
    return observation.fit


def _phases(pod: ObservedPod) -> tuple[PhaseReport, ...]:
    return pod.runtime.phases if pod.runtime else ()


def _done(pod: ObservedPod) -> list[PhaseReport]:
    return [phase for phase in _phases(pod) if phase.is_done]


def _cold_starts(observation: Observation) -> ColdStarts:
    newest = max((pod for pod in observation.live if pod.runtime), key=lambda pod: pod.created, default=None)
    seconds = {phase.name: phase.seconds for phase in _done(newest)} if newest else {}
    phases = Phases(*(seconds.get(name) for name in PHASES))
    if not observation.cold_start_s:
        return ColdStarts(phases=phases)
    median = statistics.median(observation.cold_start_s)
    return ColdStarts(round(observation.cold_start_s[-1], 2), round(median, 2), phases)


def _performance(ready: Sequence[ObservedPod]) -> Performance:
    loads = [pod.runtime.load for pod in ready if pod.runtime]
    cached = sum(load.cached_tokens_total for load in loads)
    return Performance(
        tokens_per_second=round(sum(load.tokens_per_second for load in loads), 1),
        kv_cache_use_percent=_percent(
            sum(load.kv_blocks_used for load in loads), sum(load.kv_blocks_total for load in loads)
        ),
        prefix_cache_hit_percent=_percent(cached, cached + sum(load.prompt_tokens_total for load in loads)),
    )


def _percent(part: float, whole: float) -> int:
    return min(100, round(100 * part / whole)) if whole else 0


def _last_failure(failure: Failure | None, crashes: int) -> LastFailure | None:
    if failure is None:
        return None
    message = shortened(failure.message)
    return LastFailure(failure.reason, message, timestamp(failure.at), failure.exit_code, crashes)


def _plain(value: Any) -> Any:
    """Turn dataclasses into maps with the API's names; None, empty texts and empty maps are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = {
            api_name(f.name.rstrip("_")): _plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
        return {key: item for key, item in pairs.items() if item not in (None, "", {}, [])}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
