"""The Jobs that prefetch a model's weights, for ``cache.prefetch``.

One Job for a claim, and one a node for a directory of the node. The pod is the model's own with another
command and without its GPU, so that it finds the same volumes, secrets and environment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.deployment import deployment
from wisp_operator.desired.labels import labels, metadata, pod_metadata
from wisp_operator.desired.pod.arguments import COMMAND, TERMINATION_LOG
from wisp_operator.desired.pod.environment import literal
from wisp_operator.desired.pod.placement import HOST_LABEL
from wisp_operator.desired.pod.volumes import FETCHED, cache_dir
from wisp_operator.desired.settings import BuildSettings

FETCH_LABEL = "wisp.dev/fetch"
MAX_NODES = 32
MAX_NAME_CHARS = 48  # of a model's, so that the Job's is a label too


def cache_jobs(model: InferenceModel, nodes: Sequence[str], settings: BuildSettings) -> list[dict[str, Any]]:
    """Build the Jobs that fetch now.

    Args:
        model: none are built unless it asks for prefetching something that is fetched.
        nodes: host names of the nodes that its pods may run on.
    """
    if not model.spec.cache.prefetch or model.spec.model.scheme not in FETCHED:
        return []
    if model.spec.cache.type == "PVC":
        return [_job(model, "", settings)]
    return [_job(model, node, settings) for node in sorted(nodes)[:MAX_NODES]]


def _job(model: InferenceModel, node: str, settings: BuildSettings) -> dict[str, Any]:
    pod = _pod(model, node, settings)
    pod_labels = pod_metadata(model, _labels(model))
    # A Job's template cannot change: another template is another Job.
    given = {key: value for key, value in pod_metadata(model, {}).items() if value}
    more = [*([given] if given else []), *([model.name] if len(model.name) > MAX_NAME_CHARS else [])]
    identity = [pod, *more] if more else pod
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    job_metadata = metadata(model, f"{model.name[:MAX_NAME_CHARS]}-fetch-{digest}")
    job_metadata["labels"] = {**job_metadata["labels"], FETCH_LABEL: model.name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": job_metadata,
        "spec": {
            "backoffLimit": 6,
            "template": {"metadata": pod_labels, "spec": pod},
        },
    }


def _labels(model: InferenceModel) -> dict[str, str]:
    """Labels that no Service, Deployment or policy of the model selects."""
    own = {key: value for key, value in labels(model).items() if not key.startswith("wisp.dev/")}
    return {**own, "app.kubernetes.io/component": "fetch", FETCH_LABEL: model.name}


def _pod(model: InferenceModel, node: str, settings: BuildSettings) -> dict[str, Any]:
    pod: dict[str, Any] = deployment(model, 0, settings)["spec"]["template"]["spec"]
    runtime = pod["containers"][0]
    kept = ("image", "imagePullPolicy", "env", "terminationMessagePath", "securityContext", "volumeMounts")
    container = {
        "name": "fetch",
        "command": list(COMMAND),
        "args": [literal(argument) for argument in _arguments(model)],
        "resources": {"requests": {"cpu": settings.cpu_request, "memory": "1Gi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **{key: runtime[key] for key in kept},
    }
    selector = {**pod.get("nodeSelector", {}), **({HOST_LABEL: node} if node else {})}
    return {
        **{key: value for key, value in pod.items() if key != "terminationGracePeriodSeconds"},
        **({"nodeSelector": selector} if selector else {}),
        "restartPolicy": "OnFailure",
        "containers": [container],
    }


def _arguments(model: InferenceModel) -> list[str]:
    revision = ["--revision", model.spec.model.revision] if model.spec.model.revision else []
    pull = ["pull", model.spec.model.uri, *revision]
    return [*pull, "--cache-dir", cache_dir(model), "--termination-log", TERMINATION_LOG]
