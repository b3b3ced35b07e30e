"""Status rules: a model's state in one word, and its nine conditions, each with a named reason.

Pure, and in order of importance: the user reads the first problem.
"""

from __future__ import annotations

from typing import Literal

from wisp_operator.api import InferenceModel
from wisp_operator.core.autoscale import Decision
from wisp_operator.core.conditions import FAILURES, REASONS, Condition, Kind, condition
from wisp_operator.core.observation import BlockedChild, Failure, Observation, ObservedPod
from wisp_operator.core.times import timestamp

FETCH_FAILURES = (
    *("ModelNotFound", "ModelUnsupported", "WeightsUnreadable", "TokenizerUnreadable"),
    *("SourceUnreachable", "AccessDenied", "CacheUnusable", "DiskFull", "ImagePullFailed", "VolumeFailed"),
)
REQUIRED_CHILDREN = ("Deployment", "Service", "NetworkPolicy", "PersistentVolumeClaim")
STATE_OF_REASON: dict[str, Literal["Asleep", "Waking", "Ready", "Failed", "Suspended"]] = {
    "Suspended": "Suspended",
    "ReplicasZero": "Suspended",
    "CrashBackOff": "Failed",
    "NameTaken": "Failed",
    "ChildRefused": "Failed",
    **dict.fromkeys(FAILURES, "Failed"),
    "Serving": "Ready",
    "Restarting": "Waking",
    "Unready": "Waking",
    "Unschedulable": "Waking",
    "Waking": "Waking",
    "ScaledToZero": "Asleep",
}


def model_state(
    model: InferenceModel, observation: Observation, decision: Decision
) -> Literal["Asleep", "Waking", "Ready", "Failed", "Suspended"]:
    """Name the model's state in one word. Failed means that waking is not being tried now."""
    return STATE_OF_REASON[_ready(model, observation, decision).reason]


def model_conditions(model: InferenceModel, observation: Observation, decision: Decision) -> list[Condition]:
    """Build the nine conditions, without times; eight before the decision on the model's names."""
    return [
        condition("Accepted", "True", "Accepted"),
        _fits(observation),
        _artifacts(model, observation),
        _scheduled(observation),
        _ready(model, observation, decision),
        _active(model, observation),
        _progressing(observation, decision),
        _degraded(observation),
        *_named(observation),
    ]


def _ready(model: InferenceModel, observation: Observation, decision: Decision) -> Condition:
    if model.spec.suspend:
        return condition("Ready", "False", "Suspended")
    if observation.fit is not None and (refusal := observation.fit.refusal):
        return condition("Ready", "False", refusal, observation.fit.message)
    if missing := _missing_child(observation):
        return condition("Ready", "False", missing.reason, missing.message)
    if observation.ready:
        return condition("Ready", "True", "Serving", _serving_message(observation))
    if _waits_after_crash(observation, decision):
        return condition("Ready", "False", _crash_reason(observation), _crash_message(observation, decision))
    if model.spec.replicas == 0:
        return condition("Ready", "False", "ReplicasZero")
    if not observation.live and decision.replicas == 0:
        return condition("Ready", "True", "ScaledToZero")
    return _waking(observation)


def _waking(observation: Observation) -> Condition:
    if stuck := _unplaced(observation):
        return condition("Ready", "False", "Unschedulable", stuck)
    if observation.last_failure and any(pod.phase == "Restarting" for pod in observation.live):
        return condition("Ready", "False", "Restarting", _restart_message(observation.last_failure))
    if any(pod.phase == "Unready" for pod in observation.live):
        return condition("Ready", "False", "Unready")
    return condition("Ready", "False", "Waking")


def _waits_after_crash(observation: Observation, decision: Decision) -> bool:
    """Whether no pod is starting, since those before it failed."""
    if observation.live:
        return all(pod.phase == "BackingOff" for pod in observation.live)
    return decision.why == "CrashBackOff"


def _serving_message(observation: Observation) -> str:
    failure = observation.last_failure
    return f"{REASONS['Serving']} But a pod fails: {failure.reason}: {failure.message}" if failure else ""


def _restart_message(failure: Failure) -> str:
    return f"{REASONS['Restarting']} {failure.reason}: {failure.message}"


def _missing_child(observation: Observation) -> BlockedChild | None:
    """A child without which no request is answered; pods that are ready lack nothing but their Service."""
    needed = ("Service",) if observation.ready else REQUIRED_CHILDREN
    return next((child for child in observation.blocked if child.is_absent and child.kind in needed), None)


def _crash_reason(observation: Observation) -> str:
    named = observation.last_failure.reason if observation.last_failure else ""
    return named if named in FAILURES else "CrashBackOff"


def _fits(observation: Observation) -> Condition:
    """A pod's failure outranks the computed fit; pods are tried again, since memory may become free."""
    failure = observation.last_failure
    if failure is not None and failure.reason in ("DoesNotFit", "ModelUnsupported"):
        return condition("Fits", "False", failure.reason, failure.message)
    if observation.fit is None or observation.fit.verdict == "Unknown":
        return condition("Fits", "Unknown", "FitUnknown", observation.fit.message if observation.fit else "")
    if refusal := observation.fit.refusal:
        return condition("Fits", "False", refusal, observation.fit.message)
    return condition("Fits", "True", "Fits", observation.fit.message)


def _artifacts(model: InferenceModel, observation: Observation) -> Condition:
    failure = observation.last_failure
    if failure is not None and failure.reason in FETCH_FAILURES:
        return condition("ArtifactsReady", "False", "FetchFailed", failure.message)
    current = [pod for pod in observation.live if not pod.is_outdated]
    if observation.prefetch == "Done" or any(pod.ready_since or _has_pulled(pod) for pod in current):
        return condition("ArtifactsReady", "True", "Fetched")
    if observation.prefetch == "Failed":
        return condition("ArtifactsReady", "False", "FetchFailed", "The Job that fetches the weights failed.")
    if model.spec.model.scheme in ("file", "pvc"):
        return condition("ArtifactsReady", "True", "InPlace")
    is_replaced = bool(observation.live) and not current
    if observation.prefetch == "Running" or is_replaced or any(pod.phase == "Starting" for pod in current):
        return condition("ArtifactsReady", "False", "Fetching")
    return condition("ArtifactsReady", "Unknown", "NotFetched")


def _has_pulled(pod: ObservedPod) -> bool:
    return (
        any(phase.name == "pull" and phase.is_done for phase in pod.runtime.phases) if pod.runtime else False
    )


def _scheduled(observation: Observation) -> Condition:
    if stuck := _unplaced(observation):
        return condition("Scheduled", "False", "Unschedulable", stuck)
    if not observation.live:
        return condition("Scheduled", "Unknown", "NoPods")
    if any(pod.phase == "Pending" for pod in observation.live):
        return condition("Scheduled", "Unknown", "Waking")
    return condition("Scheduled", "True", "Placed")


def _unplaced(observation: Observation) -> str:
    """The scheduler's message about a pod without a node; empty if none is stuck."""
    return next(
        (p.pending_message for p in observation.live if p.phase == "Pending" and p.pending_message), ""
    )


def _active(model: InferenceModel, observation: Observation) -> Condition:
    if observation.live:
        return condition("Active", "True", "PodsExist")
    return condition("Active", "False", "Suspended" if model.spec.suspend else "ScaledToZero")


def _progressing(observation: Observation, decision: Decision) -> Condition:
    kind: Kind = "Progressing"
    if _waits_after_crash(observation, decision):
        return condition(kind, "False", "CrashBackOff", _crash_message(observation, decision))
    if observation.live and not observation.ready:
        return condition(kind, "True", "Waking")
    if outdated := [pod for pod in observation.live if pod.is_outdated]:
        counts = f"{len(outdated)} of {len(observation.live)} pods run an earlier spec."
        return condition(kind, "True", "RollingOut", counts)
    if len(observation.pods) != decision.replicas or len(observation.ready) != len(observation.live):
        return condition(
            kind, "True", "Scaling", f"{len(observation.pods)} pods, {decision.replicas} decided."
        )
    return condition(kind, "False", "Settled")


def _degraded(observation: Observation) -> Condition:
    failure = observation.last_failure if observation.crashes else None
    problems = [("PodsFailing", f"{failure.reason}: {failure.message}")] if failure else []
    problems += [(child.reason, child.message) for child in observation.blocked]
    if not problems:
        return condition("Degraded", "False", "AsExpected")
    return condition("Degraded", "True", problems[0][0], " ".join(message for _, message in problems))


def _named(observation: Observation) -> list[Condition]:
    if observation.grant is None:
        return []
    if refusal := observation.grant.refusal:
        return [condition("Named", "False", "ServedNameTaken", refusal)]
    return [condition("Named", "True", "NameHeld")]


def _crash_message(observation: Observation, decision: Decision) -> str:
    failure = observation.last_failure
    why = REASONS["CrashBackOff"]
    if failure:  # the condition's own reason is not repeated in its message
        named = "" if failure.reason in FAILURES else f"{failure.reason}: "
        why = f"{named}{failure.message.rstrip('.')}."
    tried = f" Tried {observation.crashes} times." if observation.crashes > 1 else ""
    due = f" Next try at {timestamp(decision.retry_at)}." if decision.retry_at else ""
    return f"{why}{tried}{due}"
