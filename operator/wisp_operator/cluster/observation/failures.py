"""Failures of a pod, in one word and one sentence, from its status as the kubelet reports it.

Pure: a pod as the API server returns it in, a :class:`Failure` out. Reasons that Kubernetes names come
first; ends of a process are named by :mod:`wisp_operator.core.exit_reasons`.
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
STOPPED = (0, 137, 143)  # exit codes of a process that the kubelet stopped
VOLUME_EVENTS = ("FailedMount", "FailedAttachVolume")
_SECRET = re.compile(r'secrets? "?([-a-z0-9.]+)"? not found', re.IGNORECASE)
_NO_FOLDER = (
    "failed to create subPath directory"  # a claim is mounted read-only, so the kubelet cannot make it
)
_KEY = re.compile(r"couldn't find key (\S+) in Secret \S*?/?([-a-z0-9.]+)$")
_UNREAD = re.compile(r"failed to sync (secret|configmap) cache", re.IGNORECASE)


def container_status(pod: Pod) -> Mapping[str, Any]:
    """The status of the pod's only container; empty before the kubelet has one."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0])


def times_failed(pod: Pod) -> int:
    """Count the pod's failures so far; grows by one with each failure."""
    status = container_status(pod)
    ended = int(status.get("restartCount", 0)) + int("terminated" in status.get("state", {}))
    return ended + int(_is_stuck(status)) + int(pod.get("status", {}).get("phase") == "Failed" and not ended)


def failure_of(pod: Pod, now: float, *, was_ready: bool = False) -> Failure | None:
    """Name the pod's last failure; None if it has none.

    Args:
        now: Unix seconds, for failures that Kubernetes gives no time.
        was_ready: true if the pod had been ready, so that it cannot have been too slow to start.
    """
    status = container_status(pod)
    waiting = status.get("state", {}).get("waiting", {})
    if _is_stuck(status):
        return _stuck(pod, waiting, now)
    if ended := _last_end(status):
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


def is_out_of_memory(pod: Pod) -> bool:
    """Whether the pod's container last ended for its memory limit."""
    return _last_end(container_status(pod)).get("reason") == "OOMKilled"


def volume_failure(events: Iterable[Mapping[str, Any]], now: float) -> Failure | None:
    """Name the failure of a pod's volumes, from the kubelet's events about it; None if there is none."""
    for event in events:
        if event.get("reason") in VOLUME_EVENTS:
            return Failure("VolumeFailed", f"A volume could not be mounted: {event.get('message', '')}", now)
    return None


def replica_failure(deployment: Mapping[str, Any] | None, now: float) -> Failure | None:
    """Name the API server's refusal to create the pods, e.g. for a quota; None if there is none."""
    conditions = (deployment or {}).get("status", {}).get("conditions", ())
    refused = next((c for c in conditions if c["type"] == "ReplicaFailure" and c["status"] == "True"), None)
    if refused is None:
        return None
    return Failure(
        "PodRefused", str(refused.get("message", "")), seconds_of(refused.get("lastUpdateTime")) or now
    )


def _last_end(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container's last end; empty if it never ended."""
    ends = (status.get(state, {}).get("terminated") for state in ("state", "lastState"))
    return next((end for end in ends if end), {})


def _is_stuck(status: Mapping[str, Any]) -> bool:
    reason = status.get("state", {}).get("waiting", {}).get("reason")
    return reason in (*IMAGE_REASONS, *CONFIG_REASONS)


def _stuck(pod: Pod, waiting: Mapping[str, Any], now: float) -> Failure:
    message = str(waiting.get("message") or waiting["reason"])
    namespace = pod["metadata"]["namespace"]
    if waiting["reason"] in IMAGE_REASONS:
        return Failure(
            "ImagePullFailed", f"Image {_failed_image(pod, message)} could not be pulled: {message}", now
        )
    if match := _SECRET.search(message):
        sentence = f"Secret {match[1]} does not exist in namespace {namespace}; create it and the pod starts."
        return Failure("SecretMissing", sentence, now)
    if match := _KEY.search(message):
        secret, key = match[2], match[1]
        sentence = f"Secret {secret} of namespace {namespace} has no key {key}; add it and the pod starts."
        return Failure("SecretMissing", sentence, now)
    if match := _UNREAD.search(message):
        kind = {"secret": "Secret", "configmap": "ConfigMap"}[match[1].lower()]
        sentence = (
            f"The node has not read a {kind} of the pod yet; its kubelet tries again by itself. "
            f"If this lasts for minutes, look at the node's kubelet: {message}"
        )
        return Failure("ContainerRefused", sentence, now)
    if _NO_FOLDER in message:
        return Failure(
            "ModelNotFound", f"{_missing_folder(pod)}; put the model there or correct spec.model.uri.", now
        )
    return Failure("ContainerRefused", f"The container could not be started: {message}", now)


def _missing_folder(pod: Pod) -> str:
    """Name the missing folder and its claim."""
    spec = pod["spec"]
    claims = {
        v["name"]: v["persistentVolumeClaim"]["claimName"]
        for v in spec["volumes"]
        if "persistentVolumeClaim" in v
    }
    mount = next(m for m in spec["containers"][0]["volumeMounts"] if "subPath" in m)
    return f"Claim {claims.get(mount['name'], mount['name'])} has no folder {mount['subPath']}"


def _failed_image(pod: Pod, message: str) -> str:
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
    log = str(ended.get("message") or "").strip()
    return exit_reasons.failure_of(code, log, at, deadline_s=_startup_s(pod) if is_late else None)


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
