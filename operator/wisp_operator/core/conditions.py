"""Conditions of a model: their names, every reason with its sentence, and the time of the last change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from wisp_operator.core.times import timestamp

MAX_MESSAGE_CHARS = 4096  # the CRD allows 32,768

Truth = Literal["True", "False", "Unknown"]
Kind = Literal[
    "Accepted", "Fits", "ArtifactsReady", "Scheduled", "Ready", "Active", "Progressing", "Degraded", "Named"
]

FAILURES: dict[str, str] = {
    "DoesNotFit": "The model does not fit the GPU.",
    "ModelNotFound": "There is no such directory, repository, bucket or revision.",
    "ModelUnsupported": "The model's architecture, shape or format cannot be run.",
    "WeightsUnreadable": "A file of the model is truncated, damaged or inconsistent.",
    "TokenizerUnreadable": "tokenizer.json is missing or broken.",
    "DiskFull": "There is no space for a download or a conversion.",
    "SourceUnreachable": "The hub or bucket gives no answer, or breaks off; later it may.",
    "AccessDenied": "The hub or bucket wants a token or credentials, or others than these.",
    "CacheUnusable": "The directory that keeps downloads cannot be written or locked.",
    "ConfigError": "A setting cannot be had where the pod runs.",
    "KernelsMissing": "There are no kernels for this GPU, model and quantization.",
    "GpuUnavailable": "There is no GPU that the pod may use, or its driver is too old.",
    "GpuOutOfMemory": "The GPU has less free memory than the pod asked for.",
    "KernelFault": "A GPU kernel did what it must not; a bug of Wisp's.",
    "DeviceFailed": "The GPU or its driver reported an error that does not go away.",
    "ImagePullFailed": "The runtime's image, or the image with the weights, could not be pulled.",
    "SecretMissing": "A Secret that the pod needs, or a key of it, does not exist.",
    "VolumeFailed": "A volume of the pod could not be mounted.",
    "ContainerRefused": "The container, or on one machine the process, could not be started.",
    "PodRefused": "The API server refused to create the pod.",
    "OOMKilled": "The process was killed because it needed more memory than it may have.",
    "StartupTimedOut": "The pod was not ready within spec.rollout.startupDeadline.",
    "Evicted": "The node needed what the pod used.",
}
"""Reasons of failed pods that also name why the model is not ready; others read ``CrashBackOff``."""

REASONS: dict[str, str] = {
    **FAILURES,
    "Accepted": "The spec is valid.",
    "Invalid": "The spec cannot be read by this version of the operator.",
    "NotAllowed": "The spec asks for something that this installation does not allow.",
    "Fits": "The model fits the GPU.",
    "FitUnknown": "Whether the model fits is not known before a pod measures it.",
    "InPlace": "The weights are mounted, nothing is fetched.",
    "Fetched": "The weights are on the node.",
    "Fetching": "The weights are being fetched.",
    "FetchFailed": "The weights could not be fetched or read, or the image could not be pulled.",
    "NotFetched": "The weights are fetched when the model is first asked for.",
    "Placed": "Every pod has a node.",
    "Unschedulable": "No node has what the pod asks for.",
    "NoPods": "There are no pods.",
    "Serving": "The model answers requests.",
    "ScaledToZero": "Nobody asks; the next request wakes the model.",
    "Waking": "A pod is on its way.",
    "Restarting": "A pod ended after it had been ready, and is started again.",
    "Unready": "Pods run, but their readiness probe fails.",
    "CrashBackOff": "Pods end before they are ready; the next try waits.",
    "Suspended": "spec.suspend is true.",
    "ReplicasZero": "spec.replicas is 0; requests cannot wake the model.",
    "PodsExist": "The model holds a GPU or a process.",
    "Scaling": "Pods are being added or drained.",
    "RollingOut": "Pods of the current spec replace those of an earlier one.",
    "Settled": "The pods are as many as decided.",
    "PodsFailing": "Pods ended with an error.",
    "ReconcileFailed": "The operator failed to process the model, and goes on with the others.",
    "NameTaken": "An object with the name of one that the model needs exists, and is not the model's.",
    "ChildRefused": "The API server refused an object that the model needs, or gave no answer.",
    "NameHeld": "Requests for the served name reach this model.",
    "ServedNameTaken": "Requests for the served name do not reach this model.",
    "AsExpected": "No pod fails.",
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
    """Make a condition; its default message is the sentence of its reason.

    Raises:
        KeyError: the reason is not in :data:`REASONS`.
    """
    return Condition(kind, status, reason, shortened(message) or REASONS[reason])


def shortened(message: str) -> str:
    """Cut a message that quotes others, so that the status can be written."""
    return message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}…"


def with_times(
    conditions: Iterable[Condition], previous: Iterable[Condition], generation: int, now: float
) -> tuple[Condition, ...]:
    """Add the generation and the time at which each condition's status last changed.

    Args:
        conditions: current conditions.
        previous: conditions written last; one whose status is the same keeps its time.
        generation: generation of the reconciled spec.
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
