"""Requests about a model's pods that only help: why volumes do not come, and which pod may go first.

A refusal is logged and stops no reconcile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.access.writer import ClusterWriter
from wisp_operator.cluster.observation.failures import container_status, volume_failure
from wisp_operator.cluster.observation.history import ClusterHistory
from wisp_operator.cluster.observation.pods import created_at
from wisp_operator.cluster.reconcile.blockages import concerns_all
from wisp_operator.core import autoscale
from wisp_operator.core.observation import ObservedPod

log = logging.getLogger(__name__)

MOUNT_GRACE_S = 2.0
MAX_MOUNT_CHECKS = 4  # a request each
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

Pod = Mapping[str, Any]


async def record_mounts(
    writer: ClusterWriter, history: ClusterHistory, pods: Sequence[Pod], now: float
) -> None:
    """Check why a pod with a node does not start: a failing volume shows in events alone."""
    checked = 0
    for pod in pods:
        waiting = container_status(pod).get("state", {}).get("waiting", {}).get("reason")
        if waiting != "ContainerCreating" or now - created_at(pod) < MOUNT_GRACE_S:
            continue
        metadata = pod["metadata"]
        if checked < MAX_MOUNT_CHECKS and history.is_mount_check_due(metadata["name"], now):
            checked += 1
            with _logged(metadata):
                warnings = await writer.warnings_about(metadata["namespace"], metadata["name"])
                history.record_mount(metadata["name"], volume_failure(warnings, now))


async def mark_idle_first(
    writer: ClusterWriter, pods: Sequence[Pod], live: Sequence[ObservedPod], replicas: int
) -> None:
    """Before a scale-down to ``replicas``, annotate pods so that the least loaded go first."""
    if not 0 < replicas < len(live):
        return
    costs = autoscale.deletion_costs(live)
    for pod in pods:
        metadata = pod["metadata"]
        cost = costs.get(metadata["name"])
        if cost is not None and metadata.get("annotations", {}).get(DELETION_COST) != str(cost):
            with _logged(metadata):
                change = {DELETION_COST: str(cost)}
                await writer.annotate("Pod", metadata["namespace"], metadata["name"], change)


@contextmanager
def _logged(metadata: Mapping[str, Any]) -> Iterator[None]:
    """Log a refusal.

    Raises:
        ApiError: the API server gave no answer, or refuses more than this.
    """
    try:
        yield
    except ApiError as error:
        if concerns_all(error):
            raise
        log.warning("a request about pod %s/%s: %s", metadata["namespace"], metadata["name"], error)
