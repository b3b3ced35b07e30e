"""The Deployment of a model: its runtime pods.

Pure: a model, the number of pods and the installation's settings in, a manifest for server-side apply out
(no nulls, only fields we own). The pod meets Pod Security "restricted", save the hostPath volume of
``file://`` models and of the node-local cache.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.labels import (
    PORT_NAME,
    RUNTIME_PORT,
    TEMPLATE_DIGEST,
    labels,
    metadata,
    pod_metadata,
    selector,
)
from wisp_operator.desired.pod.arguments import COMMAND, TERMINATION_LOG, arguments
from wisp_operator.desired.pod.environment import environment, literal
from wisp_operator.desired.pod.placement import placement
from wisp_operator.desired.pod.resources import resources
from wisp_operator.desired.pod.volumes import mounts, volumes
from wisp_operator.desired.settings import BuildSettings

STOP_MARGIN_S = 10


def deployment(
    model: InferenceModel, replicas: int, settings: BuildSettings, token_digests: Sequence[str] = ()
) -> dict[str, Any]:
    """Build the Deployment that runs ``replicas`` pods of ``model``.

    Args:
        token_digests: digests of the gateway's tokens; without any, the pods answer everybody.
    """
    rollout = model.spec.rollout
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(model),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": max(1, math.ceil(rollout.startup_deadline.seconds)),
            "selector": {"matchLabels": selector(model)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
            },
            "template": _with_digest(
                {
                    "metadata": pod_metadata(model, labels(model)),
                    "spec": _pod(model, settings, token_digests),
                }
            ),
        },
    }


def _with_digest(template: dict[str, Any]) -> dict[str, Any]:
    """Annotate a pod template with its digest, which tells pods of earlier templates from its own."""
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]
    annotations = {**template["metadata"].get("annotations", {}), TEMPLATE_DIGEST: digest}
    return {**template, "metadata": {**template["metadata"], "annotations": annotations}}


def _pod(model: InferenceModel, settings: BuildSettings, token_digests: Sequence[str]) -> dict[str, Any]:
    drain_s = math.ceil(model.spec.rollout.drain_timeout.seconds)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.endpoint_grace_s + drain_s + STOP_MARGIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user_id,
            "runAsGroup": settings.user_id,
            "fsGroup": settings.user_id,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **placement(model),
        "containers": [_container(model, settings, token_digests)],
        "volumes": volumes(model, settings),
    }


def _container(
    model: InferenceModel, settings: BuildSettings, token_digests: Sequence[str]
) -> dict[str, Any]:
    return {
        "name": "runtime",
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": list(COMMAND),
        "args": [literal(argument) for argument in arguments(model)],
        "env": environment(model, settings, token_digests),
        "ports": [{"name": PORT_NAME, "containerPort": RUNTIME_PORT, "protocol": "TCP"}],
        "resources": resources(model, settings),
        **_probes(model),
        "lifecycle": {"preStop": {"sleep": {"seconds": settings.endpoint_grace_s}}},
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts(model),
    }


def _probes(model: InferenceModel) -> dict[str, Any]:
    """Probes by the second, since every one of them is time that a held request waits."""
    deadline_s = max(1, math.ceil(model.spec.rollout.startup_deadline.seconds))
    return {
        "startupProbe": _probe("/readyz", period_s=1, timeout_s=2, failures=deadline_s),
        "readinessProbe": _probe("/readyz", period_s=1, timeout_s=2, failures=3),
        "livenessProbe": _probe("/livez", period_s=5, timeout_s=5, failures=6),
    }


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": PORT_NAME},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }
