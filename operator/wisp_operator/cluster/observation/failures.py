"""How a pod failed, in one word and one sentence, from what the kubelet says of it.

Pure: a pod as the API server shows it in, a :class:`Failure` out. What Kubernetes calls by a name comes
first; how a process ended is for :mod:`wisp_operator.core.exit_reasons` to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from wisp_operator.core import exit_reasons
from wisp_operator.core.observation import Failure
from wisp_operator.core.times import seconds_of

Pod = Mapping[str, Any]

IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
)
CONFIG_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
STOPPED = (0, 137, 143)  # how a process ends that the kubelet told to
VOLUME_EVENTS = ("FailedMount", "FailedAttachVolume")
_SECRET = re.compile(r'secrets? "?([-a-z0-9.]+)"? not found', re.IGNORECASE)
_NO_FOLDER = (
    "failed to create subPath directory"  # a claim is mounted read-only, so the kubelet cannot make it
)
_KEY = re.compile(r"couldn't find key (\S+) in Secret \S*?/?([-a-z0-9.]+)$")


def container_status(pod: Pod) -> Mapping[str, Any]:
    """The status of the pod's only container; empty before the kubelet has one."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0])


def times_failed(pod: Pod) -> int:
    """How often the pod failed so far; grows by one with each failure."""
    status = container_status(pod)
    ended = int(status.get("restartCount", 0)) + int("terminated" in status.get("state", {}))
    return ended + int(_is_stuck(status)) + int(pod.get("status", {}).get("phase") == "Failed" and not ended)


def failure_of(pod: Pod, now: float, *, was_ready: bool = False) -> Failure | None:
    """How the pod failed last; None if it has not.

    Args:
        now: Unix seconds, for failures that Kubernetes gives no time.
        was_ready: whether the pod had been ready, so that it cannot have been too slow to start.
    """
    status = container_status(pod)
    waiting = status.get("state", {}).get("waiting", {})
    if _is_stuck(status):
        return _stuck(pod, waiting, now)
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated")
    if ended:
        return _terminated(pod, ended, now, was_ready)
    if pod.get("status", {}).get("phase") == "Failed":
        reason = str(pod["status"].get("reason") or "PodFailed")
        return Failure(reason, str(pod["status"].get("message") or "The pod failed."), now)
    return None


def is_backing_off(pod: Pod) -> bool:
    """Whether the pod's container is not running because it failed."""
    state = container_status(pod).get("state", {})
    crashed = state.get("waiting", {}).get("reason") == "CrashLoopBackOff"
    return crashed or "terminated" in state or _is_stuck(container_status(pod))


def volume_failure(events: Iterable[Mapping[str, Any]], now: float) -> Failure | None:
    """How a pod's volumes failed, from the kubelet's events about it; None if they have not."""
    for found in events:
        if found.get("reason") in VOLUME_EVENTS:
            return Failure("VolumeFailed", f"A volume could not be mounted: {found.get('message', '')}", now)
    return None


def refusal(deployment: Mapping[str, Any] | None, now: float) -> Failure | None:
    """Why the API server refuses to create the pods, e.g. for a quota; None if it does not."""
    conditions = (deployment or {}).get("status", {}).get("conditions", ())
    found = next((c for c in conditions if c["type"] == "ReplicaFailure" and c["status"] == "True"), None)
    if found is None:
        return None
    return Failure(
        "PodRefused", str(found.get("message", "")), seconds_of(found.get("lastUpdateTime")) or now
    )


def _is_stuck(status: Mapping[str, Any]) -> bool:
    reason = status.get("state", {}).get("waiting", {}).get("reason")
    return reason in (*IMAGE_REASONS, *CONFIG_REASONS)


def _stuck(pod: Pod, waiting: Mapping[str, Any], now: float) -> Failure:
    message = str(waiting.get("message") or waiting["reason"])
    namespace = pod["metadata"]["namespace"]
    if waiting["reason"] in IMAGE_REASONS:
        return Failure(
            "ImagePullFailed", f"Image {_unpulled(pod, message)} could not be pulled: {message}", now
        )
    if found := _SECRET.search(message):
        says = f"Secret {found[1]} does not exist in namespace {namespace}; create it and the pod starts."
        return Failure("SecretMissing", says, now)
    if found := _KEY.search(message):
        says = f"Secret {found[2]} of namespace {namespace} has no key {found[1]}; add it and the pod starts."
        return Failure("SecretMissing", says, now)
    if _NO_FOLDER in message:
        return Failure(
            "ModelNotFound", f"{_missing_folder(pod)}; put the model there or correct spec.model.uri.", now
        )
    return Failure("ContainerRefused", f"The container could not be started: {message}", now)


def _missing_folder(pod: Pod) -> str:
    """Say which folder of which claim a pod's container wants."""
    spec = pod["spec"]
    claims = {
        v["name"]: v["persistentVolumeClaim"]["claimName"]
        for v in spec["volumes"]
        if "persistentVolumeClaim" in v
    }
    mount = next(m for m in spec["containers"][0]["volumeMounts"] if "subPath" in m)
    return f"Claim {claims.get(mount['name'], mount['name'])} has no folder {mount['subPath']}"


def _unpulled(pod: Pod, message: str) -> str:
    """The image that a message is about: one with weights if it names it, else the container's."""
    mounted = [volume["image"]["reference"] for volume in pod["spec"].get("volumes", ()) if "image" in volume]
    own = str(pod["spec"]["containers"][0].get("image", ""))
    return next((reference for reference in mounted if reference in message), own)


def _terminated(pod: Pod, ended: Mapping[str, Any], now: float, was_ready: bool) -> Failure:
    at = seconds_of(ended.get("finishedAt")) or now
    code = int(ended.get("exitCode", 0))
    if ended.get("reason") == "OOMKilled":
        return Failure("OOMKilled", _out_of_memory(pod), at, code)
    is_late = code in STOPPED and not was_ready and _took_whole_startup(pod, ended)
    left = str(ended.get("message") or "").strip()
    return exit_reasons.failure_of(code, left, at, deadline_s=_startup_s(pod) if is_late else None)


def _out_of_memory(pod: Pod) -> str:
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    limit = f"its limit of {limits['memory']}" if "memory" in limits else "what its node had left"
    return f"The process was killed because it needed more memory than {limit}."


def _startup_s(pod: Pod) -> float:
    probe = pod["spec"]["containers"][0].get("startupProbe", {})
    return float(probe.get("periodSeconds", 10)) * float(probe.get("failureThreshold", 3))


def _took_whole_startup(pod: Pod, ended: Mapping[str, Any]) -> bool:
    begun, finished = seconds_of(ended.get("startedAt")), seconds_of(ended.get("finishedAt"))
    return begun is not None and finished is not None and finished - begun >= _startup_s(pod) - 1
