"""Pods of Kubernetes as :class:`ObservedPod` values.

Pure: the pod as the API server returns it and its runtime's last ``/state`` in, :class:`ObservedPod` out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from wisp_operator.cluster.observation.failures import container_status, is_backing_off, is_out_of_memory
from wisp_operator.core.observation import ObservedPod, Phase
from wisp_operator.core.runtime_state import PhaseReport, RuntimeState
from wisp_operator.core.times import seconds_of
from wisp_operator.desired.labels import TEMPLATE_DIGEST

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Template:
    """A Deployment's number of pods, and their template; without a Deployment none.

    Attributes:
        digest: digest of the template, which each of its pods carries; empty if unknown.
        memory_limit: limit that it names; empty if it names none.
    """

    replicas: int = 0
    digest: str = ""
    memory_limit: str = ""

    @classmethod
    def of(cls, deployment: Mapping[str, Any] | None) -> Template:
        """Read a Deployment."""
        if deployment is None:
            return cls()
        spec = deployment.get("spec", {})
        template = spec.get("template", {})
        return cls(int(spec.get("replicas", 0)), _digest(template), _memory_limit(template))

    def is_of(self, pod: Pod) -> bool:
        """Whether the pod was made from this template, as far as it is known."""
        return not self.digest or _digest(pod) == self.digest

    def compared(self, observed: Iterable[ObservedPod], pods: Iterable[Pod]) -> tuple[ObservedPod, ...]:
        """Mark the pods that were made from another template, or outgrew a limit that it does not name.

        Args:
            pods: the same pods, and perhaps others, as the API server returns them.
        """
        by_name = {pod["metadata"]["name"]: pod for pod in pods}
        return tuple(
            replace(
                pod,
                is_outdated=not self.is_of(by_name[pod.name]),
                outgrew_given_limit=self._gave_no_limit(by_name[pod.name]),
            )
            for pod in observed
        )

    def _gave_no_limit(self, pod: Pod) -> bool:
        """Whether the pod was last killed for a memory limit that is not the template's."""
        return is_out_of_memory(pod) and _memory_limit(pod) not in ("", self.memory_limit)


def _memory_limit(document: Mapping[str, Any]) -> str:
    containers = document.get("spec", {}).get("containers") or [{}]
    return str(containers[0].get("resources", {}).get("limits", {}).get("memory", ""))


def _digest(document: Mapping[str, Any]) -> str:
    return str(document.get("metadata", {}).get("annotations", {}).get(TEMPLATE_DIGEST, ""))


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
    if is_backing_off(pod):  # the kubelet starts a container again at once, before it waits
        return "Restarting" if was_ready and "terminated" in container_status(pod)["state"] else "BackingOff"
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
