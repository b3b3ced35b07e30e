"""Conditions of a model: their names, every reason there is with its sentence, and when they changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

Truth = Literal["True", "False", "Unknown"]
Kind = Literal[
    "Accepted", "Fits", "ArtifactsReady", "Scheduled", "Ready", "Active", "Progressing", "Degraded"
]

REASONS: dict[str, str] = {
    "Accepted": "The spec is valid.",
    "Invalid": "The spec cannot be read by this version of the operator.",
    "Fits": "The model fits the GPU.",
    "FitUnknown": "Whether the model fits is not known before a pod measures it.",
    "DoesNotFit": "The model does not fit the GPU.",
    "InPlace": "The weights are mounted, nothing is fetched.",
    "Fetched": "The weights are on the node.",
    "Fetching": "The weights are being fetched.",
    "FetchFailed": "The weights could not be fetched or read.",
    "NotFetched": "The weights are fetched when the model is first asked for.",
    "Placed": "Every pod has a node.",
    "Unschedulable": "No node has what the pod asks for.",
    "NoPods": "There are no pods.",
    "Serving": "The model answers requests.",
    "ScaledToZero": "Nobody asks; the next request wakes the model.",
    "Waking": "A pod is on its way.",
    "Unready": "Pods run, but their readiness probe fails.",
    "CrashBackOff": "Pods end before they are ready; the next try waits.",
    "Suspended": "spec.suspend is true.",
    "ReplicasZero": "spec.replicas is 0; requests cannot wake the model.",
    "PodsExist": "The model holds a GPU or a process.",
    "Scaling": "Pods are being added or drained.",
    "Settled": "The pods are as many as decided.",
    "PodsFailing": "Pods ended with an error.",
    "AsExpected": "No pod has failed since one was last ready.",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, as ``status.conditions`` carries it; the time is RFC 3339 in UTC."""

    type: Kind
    status: Truth
    reason: str
    message: str
    observed_generation: int = 0
    last_transition_time: str = ""


def condition(kind: Kind, status: Truth, reason: str, message: str = "") -> Condition:
    """Make a condition; without a message it says its reason's sentence.

    Raises:
        KeyError: the reason is not in :data:`REASONS`.
    """
    return Condition(kind, status, reason, message or REASONS[reason])


def stamped(
    conditions: Iterable[Condition], previous: Iterable[Condition], generation: int, now: float
) -> tuple[Condition, ...]:
    """Add the generation and the time at which each condition's status last changed.

    Args:
        conditions: as they are now.
        previous: as they were written last; one whose status is the same keeps its time.
        generation: of the spec that was looked at.
        now: Unix seconds.
    """
    before = {old.type: old for old in previous}
    result = []
    for new in conditions:
        old = before.get(new.type)
        kept = old.last_transition_time if old and old.status == new.status else ""
        result.append(
            Condition(new.type, new.status, new.reason, new.message, generation, kept or timestamp(now))
        )
    return tuple(result)


def timestamp(seconds: float) -> str:
    """Write Unix seconds as Kubernetes does: ``2026-01-31T12:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
