"""The gateway's directory of ``wisp up``: one JSON file, replaced as a whole.

The text is the contract *The gateway's directory* of docs/contracts.md; :mod:`wisp_operator.core.status`
decides the state of a model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wisp_operator.api import InferenceModel, Scaling
from wisp_operator.core.status import Progress, Status
from wisp_operator.local.processes.pods import Pod, PodState


def entry(
    model: InferenceModel,
    status: Status,
    progress: Progress | None,
    pods: Sequence[Pod],
    *,
    created: float,
    api_keys: Path | None,
) -> dict[str, Any]:
    """Build the directory's entry of one model.

    Args:
        created: time at which the model was first served, Unix seconds.
        api_keys: file of the keys that callers of protected models need.
    """
    spec = model.spec
    return {
        "namespace": model.namespace,
        "name": model.name,
        "servedName": model.served_name,
        "names": list(status.names),
        "refusedNames": list(status.refused_names),
        "created": int(created),
        "state": status.state,
        "reason": status.reason,
        "message": status.message,
        "phase": progress.phase if progress else None,
        "progress": progress.fraction if progress else None,
        "coldStart": {
            "mode": spec.cold_start.mode,
            "maxWaitSeconds": spec.cold_start.max_wait.seconds,
            "heartbeatSeconds": spec.cold_start.heartbeat_s,
            "queueLimit": spec.cold_start.queue_limit,
        },
        "routing": spec.routing.policy,
        "targetConcurrency": (spec.autoscaling or Scaling()).target_concurrency,
        "apiKeysFile": str(api_keys) if api_keys and spec.access.api_key_secret_ref else None,
        "desiredReplicas": status.desired_replicas,
        "canStop": can_stop(model),
        "idleAfterSeconds": _idle_after_s(model),
        "fitVerdict": status.fit.verdict if status.fit else None,
        "uri": spec.model.uri,
        "gpus": spec.gpu.count,
        "endpoints": [_endpoint(pod) for pod in pods if pod.address],
    }


def can_stop(model: InferenceModel) -> bool:
    """Return whether a model's pods may be stopped by hand: it goes to zero anyway."""
    scaling = model.spec.autoscaling
    return scaling is not None and not scaling.min and not model.spec.suspend


def _idle_after_s(model: InferenceModel) -> float | None:
    scaling = model.spec.autoscaling
    return None if scaling is None or scaling.min else scaling.idle_after.seconds


def _endpoint(pod: Pod) -> dict[str, Any]:
    return {
        "id": pod.name,
        "address": pod.address,
        "ready": pod.state == PodState.READY and not pod.is_draining,
        "draining": pod.is_draining,
    }


class DirectoryFile:
    """Writes the directory where the gateway reads it, only when it changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = ""

    def write(self, entries: Sequence[dict[str, Any]]) -> None:
        """Replace the file, so that a reader sees either the old or the new text.

        Raises:
            OSError: the disk is full, or the folder is gone.
        """
        text = json.dumps({"models": list(entries)}, indent=1)
        if text == self._written:
            return
        beside = self.path.with_suffix(".new")
        beside.write_text(text)
        os.replace(beside, self.path)
        self._written = text
