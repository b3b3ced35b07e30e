"""Judge a model: its state in one word, and its eight conditions, each with a named reason.

Pure, and in order of importance: the first thing that is wrong is what the user reads.
"""

from __future__ import annotations

from typing import Literal

from wisp_operator.api import InferenceModel
from wisp_operator.core.autoscale import Decision
from wisp_operator.core.conditions import FAILURES, REASONS, Condition, Kind, condition
from wisp_operator.core.observation import Facts, PodFacts
from wisp_operator.core.times import timestamp

FETCH_FAILURES = (
    *("ModelNotFound", "ModelUnsupported", "WeightsUnreadable", "TokenizerUnreadable"),
    *("SourceUnreachable", "AccessDenied", "CacheUnusable", "DiskFull"),
)
STATE_OF_REASON: dict[str, Literal["Asleep", "Waking", "Ready", "Failed", "Suspended"]] = {
    "Suspended": "Suspended",
    "ReplicasZero": "Suspended",
    "CrashBackOff": "Failed",
    **dict.fromkeys(FAILURES, "Failed"),
    "Serving": "Ready",
    "Unready": "Waking",
    "Unschedulable": "Waking",
    "Waking": "Waking",
    "ScaledToZero": "Asleep",
}


def state_of(
    model: InferenceModel, facts: Facts, decision: Decision
) -> Literal["Asleep", "Waking", "Ready", "Failed", "Suspended"]:
    """Say in one word where the model stands. Failed means that waking is not being tried now."""
    return STATE_OF_REASON[_ready(model, facts, decision).reason]


def conditions_of(model: InferenceModel, facts: Facts, decision: Decision) -> list[Condition]:
    """Give the eight conditions, without times."""
    return [
        condition("Accepted", "True", "Accepted"),
        _fits(facts),
        _artifacts(model, facts),
        _scheduled(facts),
        _ready(model, facts, decision),
        _active(model, facts),
        _progressing(facts, decision),
        _degraded(facts),
    ]


def _ready(model: InferenceModel, facts: Facts, decision: Decision) -> Condition:
    if model.spec.suspend:
        return condition("Ready", "False", "Suspended")
    if facts.fit is not None and (refusal := facts.fit.refusal):
        return condition("Ready", "False", refusal, facts.fit.message)
    if facts.ready:
        return condition("Ready", "True", "Serving")
    if decision.why == "CrashBackOff" or (
        facts.live and all(pod.phase == "BackingOff" for pod in facts.live)
    ):
        return condition("Ready", "False", _crash_reason(facts), _crash_message(facts, decision))
    if model.spec.replicas == 0:
        return condition("Ready", "False", "ReplicasZero")
    if not facts.live and decision.replicas == 0:
        return condition("Ready", "True", "ScaledToZero")
    if stuck := _unplaced(facts):
        return condition("Ready", "False", "Unschedulable", stuck)
    if any(pod.phase == "Unready" for pod in facts.live):
        return condition("Ready", "False", "Unready")
    return condition("Ready", "False", "Waking")


def _crash_reason(facts: Facts) -> str:
    named = facts.last_failure.reason if facts.last_failure else ""
    return named if named in FAILURES else "CrashBackOff"


def _fits(facts: Facts) -> Condition:
    """What a pod found outranks what was computed; it is tried again, since memory may become free."""
    failure = facts.last_failure
    if failure is not None and failure.reason in ("DoesNotFit", "ModelUnsupported"):
        return condition("Fits", "False", failure.reason, failure.message)
    if facts.fit is None or facts.fit.verdict == "Unknown":
        return condition("Fits", "Unknown", "FitUnknown", facts.fit.message if facts.fit else "")
    if refusal := facts.fit.refusal:
        return condition("Fits", "False", refusal, facts.fit.message)
    return condition("Fits", "True", "Fits", facts.fit.message)


def _artifacts(model: InferenceModel, facts: Facts) -> Condition:
    failure = facts.last_failure
    if failure is not None and failure.reason in FETCH_FAILURES and not facts.ready:
        return condition("ArtifactsReady", "False", "FetchFailed", failure.message)
    if facts.prefetch == "Done" or any(pod.ready_since or _has_pulled(pod) for pod in facts.live):
        return condition("ArtifactsReady", "True", "Fetched")
    if facts.prefetch == "Failed":
        return condition("ArtifactsReady", "False", "FetchFailed", "The Job that fetches the weights failed.")
    if model.spec.model.scheme in ("file", "pvc"):
        return condition("ArtifactsReady", "True", "InPlace")
    if facts.prefetch == "Running" or any(pod.phase == "Starting" for pod in facts.live):
        return condition("ArtifactsReady", "False", "Fetching")
    return condition("ArtifactsReady", "Unknown", "NotFetched")


def _has_pulled(pod: PodFacts) -> bool:
    phases = {phase.get("name"): phase.get("state") for phase in pod.runtime.get("phases", ())}
    return phases.get("pull") == "done"


def _scheduled(facts: Facts) -> Condition:
    if stuck := _unplaced(facts):
        return condition("Scheduled", "False", "Unschedulable", stuck)
    if not facts.live:
        return condition("Scheduled", "Unknown", "NoPods")
    if any(pod.phase == "Pending" for pod in facts.live):
        return condition("Scheduled", "Unknown", "Waking")
    return condition("Scheduled", "True", "Placed")


def _unplaced(facts: Facts) -> str:
    """What the scheduler says of a pod without a node; empty if none is stuck."""
    return next((p.pending_message for p in facts.live if p.phase == "Pending" and p.pending_message), "")


def _active(model: InferenceModel, facts: Facts) -> Condition:
    if facts.live:
        return condition("Active", "True", "PodsExist")
    return condition("Active", "False", "Suspended" if model.spec.suspend else "ScaledToZero")


def _progressing(facts: Facts, decision: Decision) -> Condition:
    kind: Kind = "Progressing"
    if decision.why == "CrashBackOff":
        return condition(kind, "False", "CrashBackOff", _crash_message(facts, decision))
    if facts.live and not facts.ready:
        return condition(kind, "True", "Waking")
    if len(facts.pods) != decision.replicas or len(facts.ready) != len(facts.live):
        return condition(kind, "True", "Scaling", f"{len(facts.pods)} pods, {decision.replicas} decided.")
    return condition(kind, "False", "Settled")


def _degraded(facts: Facts) -> Condition:
    failure = facts.last_failure
    if failure is None or facts.crashes == 0:
        return condition("Degraded", "False", "AsExpected")
    return condition("Degraded", "True", "PodsFailing", f"{failure.reason}: {failure.message}")


def _crash_message(facts: Facts, decision: Decision) -> str:
    failure = facts.last_failure
    why = REASONS["CrashBackOff"]
    if failure:  # a reason that the condition itself carries need not be said twice
        named = "" if failure.reason in FAILURES else f"{failure.reason}: "
        why = f"{named}{failure.message.rstrip('.')}."
    tried = f" Tried {facts.crashes} times." if facts.crashes > 1 else ""
    due = f" Next try at {timestamp(decision.retry_at)}." if decision.retry_at else ""
    return f"{why}{tried}{due}"
