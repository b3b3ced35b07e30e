"""Say in one status what was observed of a model, and why.

Pure: facts and the autoscaler's decision in, the whole of ``status`` out, written once a reconcile.
The conditions are in :mod:`.status_rules`; here are the numbers around them.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from wisp_operator.api import InferenceModel
from wisp_operator.api.schema_parser import written
from wisp_operator.core.autoscale import Decision
from wisp_operator.core.conditions import Condition, condition, stamped
from wisp_operator.core.fit import FitReport, measured
from wisp_operator.core.observation import Facts, Failure, PodFacts
from wisp_operator.core.status_rules import conditions_of, state_of
from wisp_operator.core.times import timestamp
from wisp_operator.desired.labels import selector_text
from wisp_operator.errors import Problem

State = Literal["Asleep", "Waking", "Ready", "Failed", "Suspended"]
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
    """``status.coldStart``: how long recent cold starts took, in seconds."""

    last_seconds: float | None = None
    p50_seconds: float | None = None
    phases: Phases = field(default_factory=Phases)


@dataclass(frozen=True, slots=True)
class Performance:
    """``status.performance``: what the pods do now, summed or averaged over them."""

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
    """``status.lastFailure``: how a pod last ended badly; kept while the model is at zero."""

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
    fit: FitReport | None = None
    cold_start: ColdStarts = field(default_factory=ColdStarts)
    performance: Performance = field(default_factory=Performance)
    queue: Queue = field(default_factory=Queue)
    last_failure: LastFailure | None = None
    conditions: tuple[Condition, ...] = ()

    def condition(self, kind: str) -> Condition:
        """The condition of this type."""
        return next(found for found in self.conditions if found.type == kind)

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
        written_status: dict[str, Any] = _plain(self)
        return written_status


def summarise(
    model: InferenceModel,
    facts: Facts,
    decision: Decision,
    now: float,
    previous: Sequence[Condition] = (),
) -> Status:
    """Tell what was observed.

    Args:
        model: as the user wrote it.
        facts: observed now.
        decision: the autoscaler's, made on the same facts.
        now: Unix seconds.
        previous: conditions of the last status, for the times at which they changed.
    """
    return Status(
        state=state_of(model, facts, decision),
        observed_generation=model.generation,
        url=facts.url,
        selector=selector_text(model),
        replicas=len(facts.pods),
        ready_replicas=len(facts.ready),
        desired_replicas=decision.replicas,
        fit=_fit(facts),
        cold_start=_cold_starts(facts),
        performance=_performance(facts.ready),
        queue=Queue(facts.demand.waiting, facts.demand.running),
        last_failure=_last_failure(facts.last_failure, facts.crashes),
        conditions=stamped(conditions_of(model, facts, decision), previous, model.generation, now),
    )


def refused(
    problems: Sequence[Problem], generation: int, now: float, previous: Sequence[Condition] = ()
) -> Status:
    """Tell that an object cannot be read, as happens when the CRD and the operator differ in age."""
    message = "; ".join(str(problem) for problem in problems)
    found = [
        condition("Accepted", "False", "Invalid", message),
        condition("Ready", "False", "Invalid", message),
    ]
    return Status("Failed", generation, conditions=stamped(found, previous, generation, now))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a waking model is: the phase it is in, and the share of its bytes if it reads any."""

    phase: str
    fraction: float | None = None


def progress(facts: Facts) -> Progress | None:
    """Tell how far the foremost starting pod is; None if none is starting."""
    starting = [pod for pod in facts.live if pod.phase in ("Pending", "Starting")]
    found = [(len(_done(pod)), pod) for pod in starting]
    if not found:
        return None
    pod = max(found, key=lambda pair: pair[0])[1]
    if pod.phase == "Pending":
        return Progress("schedule")
    active = next((phase for phase in pod.runtime.get("phases", ()) if phase.get("state") != "done"), None)
    if active is None:
        return Progress("import")
    total = active.get("totalBytes") or 0
    return Progress(str(active.get("name")), active.get("bytes", 0) / total if total else None)


def _fit(facts: Facts) -> FitReport | None:
    """What a ready pod measured; without one what was computed."""
    ledgers = [pod.runtime["ledger"] for pod in facts.ready if pod.runtime.get("ledger")]
    return measured(ledgers[0], facts.fit.gpu if facts.fit else "") if ledgers else facts.fit


def _done(pod: PodFacts) -> list[Mapping[str, Any]]:
    return [phase for phase in pod.runtime.get("phases", ()) if phase.get("state") == "done"]


def _cold_starts(facts: Facts) -> ColdStarts:
    newest = max((pod for pod in facts.live if pod.runtime), key=lambda pod: pod.created, default=None)
    seconds = {phase["name"]: phase["seconds"] for phase in _done(newest)} if newest else {}
    phases = Phases(*(seconds.get(name) for name in PHASES))
    if not facts.cold_start_s:
        return ColdStarts(phases=phases)
    median = statistics.median(facts.cold_start_s)
    return ColdStarts(round(facts.cold_start_s[-1], 2), round(median, 2), phases)


def _performance(ready: Sequence[PodFacts]) -> Performance:
    loads = [pod.runtime.get("load", {}) for pod in ready]

    def total(key: str) -> float:
        return sum(float(load.get(key, 0)) for load in loads)

    return Performance(
        tokens_per_second=round(total("tokensPerSecond"), 1),
        kv_cache_use_percent=_percent(total("kvBlocksUsed"), total("kvBlocksTotal")),
        prefix_cache_hit_percent=_percent(total("cachedTokensTotal"), total("promptTokensTotal")),
    )


def _percent(part: float, whole: float) -> int:
    return round(100 * part / whole) if whole else 0


def _last_failure(failure: Failure | None, crashes: int) -> LastFailure | None:
    if failure is None:
        return None
    return LastFailure(failure.reason, failure.message, timestamp(failure.at), failure.exit_code, crashes)


def _plain(value: Any) -> Any:
    """Turn dataclasses into maps with the API's names; None, empty texts and empty maps are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = {
            written(f.name.rstrip("_")): _plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
        return {key: found for key, found in pairs.items() if found not in (None, "", {}, [])}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
