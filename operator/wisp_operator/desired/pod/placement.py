"""Placement of a pod: its GPU request, node affinity and tolerations."""

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
    """Build the part of a pod's spec that chooses its node; only what the model's spec names."""
    spec: dict[str, Any] = {}
    if gpu.node_selector:
        spec["nodeSelector"] = dict(gpu.node_selector)
    if tolerations := _tolerations(gpu):
        spec["tolerations"] = tolerations
    if expressions := _expressions(gpu):
        terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return spec


def _expressions(gpu: Gpu) -> list[dict[str, Any]]:
    """Conditions on the labels that NVIDIA's GPU feature discovery gives nodes."""
    expressions: list[dict[str, Any]] = []
    if gpu.product:
        expressions.append({"key": PRODUCT_LABEL, "operator": "In", "values": list(gpu.product)})
    if gpu.memory is not None:
        # The label counts whole MiB; "at least" is "greater than one less".
        least = -(-gpu.memory.bytes // 2**20)
        expressions.append({"key": MEMORY_LABEL, "operator": "Gt", "values": [str(least - 1)]})
    return expressions


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
