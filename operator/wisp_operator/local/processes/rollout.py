"""Rollout of a Deployment: pods to start and to stop, so that its template and replicas come true.

Pure: the rules of a Deployment's rolling update, seen over pods instead of ReplicaSets. Called again after
every change, it converges step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod as a rollout needs it; pods that drain are left out."""

    name: str
    digest: str
    is_ready: bool
    created: float


@dataclass(frozen=True, slots=True)
class DesiredPods:
    """Pods that a Deployment asks for.

    Attributes:
        digest: digest of the pod template.
        replicas: number of pods.
        max_surge: pods above ``replicas`` during an update.
        max_unavailable: pods below ``replicas`` that may be missing during an update.
    """

    digest: str
    replicas: int
    max_surge: int = 1
    max_unavailable: int = 0


def plan(desired: DesiredPods, pods: Sequence[PodView]) -> tuple[int, list[str]]:
    """Return the number of pods of the current template to start now, and the names of those to stop now."""
    current = [pod for pod in pods if pod.digest == desired.digest]
    outdated = [pod for pod in pods if pod.digest != desired.digest]
    if desired.replicas == 0:
        return 0, [pod.name for pod in pods]
    surplus = _removal_order(current)[: max(0, len(current) - desired.replicas)]
    replaced = _replaceable(desired, current, outdated)
    capacity = desired.replicas + desired.max_surge - len(current) - len(outdated)
    start = max(0, min(desired.replicas - len(current), capacity))
    return start, [pod.name for pod in (*surplus, *replaced)]


def _replaceable(
    desired: DesiredPods, current: Sequence[PodView], outdated: Sequence[PodView]
) -> list[PodView]:
    """Outdated pods that may stop: those not ready, and ready ones above the minimum that must serve."""
    ready = sum(pod.is_ready for pod in (*current, *outdated))
    spare = ready - max(0, desired.replicas - desired.max_unavailable)
    replaceable = []
    for pod in _removal_order(outdated):
        if not pod.is_ready:
            replaceable.append(pod)
        elif spare > 0:
            replaceable.append(pod)
            spare -= 1
    return replaceable


def _removal_order(pods: Sequence[PodView]) -> list[PodView]:
    """Not ready before ready, young before old."""
    return sorted(pods, key=lambda pod: (pod.is_ready, -pod.created))
