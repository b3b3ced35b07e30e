"""Pods of Kubernetes as :class:`ObservedPod` values.

Pure: the pod as the API server returns it and its runtime's last ``/state`` in, :class:`ObservedPod` out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from wisp_operator.cluster.observation.failures import container_status, is_backing_off
from wisp_operator.core.observation import ObservedPod, Phase
from wisp_operator.core.runtime_state import PhaseReport, RuntimeState
from wisp_operator.core.times import seconds_of

Pod = Mapping[str, Any]


def exists(pod: Pod) -> bool:
    """Whether the pod counts: one that ended for good is a record, not a pod."""
    return pod.get("status", {}).get("phase") not in ("Failed", "Succeeded")


def observed_pod(pod: Pod, runtime: RuntimeState | None, ready_since: float | None) -> ObservedPod:
    """Read one pod.

    Args:
        runtime: last ``/state`` of the pod; None if it gave none.
        ready_since: time at which it first became ready, if known from earlier.
    """
    status = container_status(pod)
    began = ready_at(pod) if ready_since is None else ready_since
    return ObservedPod(
        name=pod["metadata"]["name"],
        phase=phase_of(pod, was_ready=began is not None),
        created=created_at(pod),
        ready_since=began,
        restarts=int(status.get("restartCount", 0)),
        runtime=_with_schedule(pod, runtime),
        pending_message=_pending_message(pod),
    )


def phase_of(pod: Pod, *, was_ready: bool) -> Phase:
    """Name the pod's phase in one word."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Draining"
    if ready_at(pod) is not None:
        return "Ready"
    if is_backing_off(pod):
        return "BackingOff"
    if not pod.get("spec", {}).get("nodeName"):
        return "Pending"
    return "Unready" if was_ready else "Starting"


def created_at(pod: Pod) -> float:
    """Time of the pod's creation, Unix seconds."""
    return seconds_of(pod["metadata"]["creationTimestamp"]) or 0.0


def ready_at(pod: Pod) -> float | None:
    """Time since which the pod is ready, Unix seconds; None if it is not."""
    ready = _condition(pod, "Ready")
    return seconds_of(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None


def prefetch_of(jobs: Iterable[Mapping[str, Any]]) -> Literal["Running", "Done", "Failed"] | None:
    """Progress of the Jobs that prefetch a model's weights; one failure outweighs those that run."""
    outcomes = {_outcome(job) for job in jobs}
    return next((outcome for outcome in ("Failed", "Running", "Done") if outcome in outcomes), None)


def _outcome(job: Mapping[str, Any]) -> str:
    conditions = job.get("status", {}).get("conditions", ())
    reached = {condition["type"] for condition in conditions if condition["status"] == "True"}
    return "Failed" if "Failed" in reached else "Done" if "Complete" in reached else "Running"


def address_of(pod: Pod, port: int) -> str:
    """``host:port`` of the pod's runtime; empty while it has no address or its container does not run."""
    host = pod.get("status", {}).get("podIP", "")
    if not host or "running" not in container_status(pod).get("state", {}):
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _pending_message(pod: Pod) -> str:
    scheduled = _condition(pod, "PodScheduled")
    return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else ""


def _condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    conditions = pod.get("status", {}).get("conditions", ())
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _with_schedule(pod: Pod, runtime: RuntimeState | None) -> RuntimeState | None:
    """Prepend the phase before the runtime's own: from creation until its container ran."""
    if runtime is None:
        return None
    begun = seconds_of(container_status(pod).get("state", {}).get("running", {}).get("startedAt"))
    if begun is None:
        return runtime
    schedule = PhaseReport("schedule", is_done=True, seconds=max(0.0, begun - created_at(pod)))
    return replace(runtime, phases=(schedule, *runtime.phases))
