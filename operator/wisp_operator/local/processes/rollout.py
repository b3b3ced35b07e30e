"""Which pods to start and which to stop so that a Deployment's template and replicas come true.

Pure: the rules of a Deployment's rolling update, seen over pods instead of ReplicaSets. Called again after
every change, it converges step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodView:
    """What a rollout needs to know of a pod; one that drains is not shown."""

    name: str
    digest: str
    is_ready: bool
    created: float


@dataclass(frozen=True, slots=True)
class Wish:
    """What a Deployment asks for.

    Attributes:
        digest: of the pod template.
        replicas: how many pods.
        max_surge: pods above ``replicas`` during an update.
        max_unavailable: pods below ``replicas`` that may be missing during an update.
    """

    digest: str
    replicas: int
    max_surge: int = 1
    max_unavailable: int = 0


def plan(wish: Wish, pods: Sequence[PodView]) -> tuple[int, list[str]]:
    """How many pods of the current template to start now, and the names of those to stop now."""
    current = [pod for pod in pods if pod.digest == wish.digest]
    outdated = [pod for pod in pods if pod.digest != wish.digest]
    if wish.replicas == 0:
        return 0, [pod.name for pod in pods]
    surplus = _least_useful(current)[: max(0, len(current) - wish.replicas)]
    replaced = _replaceable(wish, current, outdated)
    room = wish.replicas + wish.max_surge - len(current) - len(outdated)
    start = max(0, min(wish.replicas - len(current), room))
    return start, [pod.name for pod in (*surplus, *replaced)]


def _replaceable(wish: Wish, current: Sequence[PodView], outdated: Sequence[PodView]) -> list[PodView]:
    """Outdated pods that nobody misses: those not ready, and ready ones above the least that must serve."""
    ready = sum(pod.is_ready for pod in (*current, *outdated))
    spare = ready - max(0, wish.replicas - wish.max_unavailable)
    chosen = []
    for pod in _least_useful(outdated):
        if not pod.is_ready:
            chosen.append(pod)
        elif spare > 0:
            chosen.append(pod)
            spare -= 1
    return chosen


def _least_useful(pods: Sequence[PodView]) -> list[PodView]:
    """Not ready before ready, young before old."""
    return sorted(pods, key=lambda pod: (pod.is_ready, -pod.created))
