"""Where a pod may run: the GPU it asks for, the nodes that have it, the taints it accepts."""

from __future__ import annotations

from typing import Any

from wisp_operator.api import Gpu, InferenceModel, Toleration
from wisp_operator.desired.settings import BuildSettings

HOST_LABEL = "kubernetes.io/hostname"
PRODUCT_LABEL = "nvidia.com/gpu.product"
MEMORY_LABEL = "nvidia.com/gpu.memory"


def resources(model: InferenceModel, settings: BuildSettings) -> dict[str, Any]:
    """The container's requests and limits; a GPU is both."""
    requests = {"cpu": settings.cpu_request, "memory": settings.memory_request}
    gpu = model.spec.gpu
    if gpu.count == 0:
        return {"requests": requests}
    count = {gpu.resource_name: str(gpu.count)}
    return {"requests": {**requests, **count}, "limits": count}


def placement(gpu: Gpu) -> dict[str, Any]:
    """The part of a pod's spec that chooses its node; only what was asked for."""
    found: dict[str, Any] = {}
    if gpu.node_selector:
        found["nodeSelector"] = dict(gpu.node_selector)
    if tolerations := _tolerations(gpu):
        found["tolerations"] = tolerations
    if expressions := _expressions(gpu):
        terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        found["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return found


def _expressions(gpu: Gpu) -> list[dict[str, Any]]:
    """Conditions on the labels that NVIDIA's GPU feature discovery gives nodes."""
    found: list[dict[str, Any]] = []
    if gpu.product:
        found.append({"key": PRODUCT_LABEL, "operator": "In", "values": list(gpu.product)})
    if gpu.memory is not None:
        # The label counts whole MiB; "at least" is "greater than one less".
        least = -(-gpu.memory.bytes // 2**20)
        found.append({"key": MEMORY_LABEL, "operator": "Gt", "values": [str(least - 1)]})
    return found


def _tolerations(gpu: Gpu) -> list[dict[str, Any]]:
    """The user's tolerations, and the taint that keeps other pods off GPU nodes."""
    own = [{"key": gpu.resource_name, "operator": "Exists", "effect": "NoSchedule"}] if gpu.count else []
    return [*own, *(_toleration(toleration) for toleration in gpu.tolerations)]


def _toleration(toleration: Toleration) -> dict[str, Any]:
    given = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
        "tolerationSeconds": toleration.toleration_seconds,
    }
    return {key: value for key, value in given.items() if value is not None}
