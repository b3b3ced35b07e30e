"""Placement of a pod: nodes by their GPUs and labels, tolerations, other pods, priority and spread."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from wisp_operator.api import Gpu, InferenceModel, Toleration
from wisp_operator.api.pod_template import Affinity, NodeAffinity
from wisp_operator.api.schema_parser import api_name
from wisp_operator.desired.labels import selector

HOST_LABEL = "kubernetes.io/hostname"
PRODUCT_LABEL = "nvidia.com/gpu.product"
MEMORY_LABEL = "nvidia.com/gpu.memory"


def placement(model: InferenceModel) -> dict[str, Any]:
    """Build the part of a pod's spec that chooses its node; only what the model's spec names."""
    gpu, template = model.spec.gpu, model.spec.pod_template
    spec: dict[str, Any] = {}
    if gpu.node_selector:
        spec["nodeSelector"] = dict(gpu.node_selector)
    if tolerations := _tolerations(gpu):
        spec["tolerations"] = tolerations
    if affinity := _affinity(template.affinity or Affinity(), _expressions(gpu)):
        spec["affinity"] = affinity
    if template.priority_class_name:
        spec["priorityClassName"] = template.priority_class_name
    if template.topology_spread_constraints:
        own = {"labelSelector": {"matchLabels": selector(model)}}
        spec["topologySpreadConstraints"] = [
            {**_plain(constraint), **own} for constraint in template.topology_spread_constraints
        ]
    return spec


def _affinity(given: Affinity, of_gpu: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the affinity; terms of nodes are alternatives, so each gets the conditions on the GPU."""
    nodes = given.node_affinity or NodeAffinity()
    affinity: dict[str, Any] = _plain(given)
    required = nodes.required_during_scheduling_ignored_during_execution
    if required is None and not of_gpu:
        return affinity
    terms = _plain(required)["nodeSelectorTerms"] if required else [{"matchExpressions": []}]
    joined = [{"matchExpressions": [*of_gpu, *term["matchExpressions"]]} for term in terms]
    by_node = {**affinity.get("nodeAffinity", {})}
    by_node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": joined}
    return {**affinity, "nodeAffinity": by_node}


def _plain(value: Any) -> Any:
    """Write a value of the API as a manifest has it: without what is absent, or empty and means the same.

    An empty selector means every pod, none at all means no pod.
    """
    if dataclasses.is_dataclass(value):
        fields = {api_name(field.name): getattr(value, field.name) for field in dataclasses.fields(value)}
        plain = {key: _plain(item) for key, item in fields.items()}
        return {
            key: item
            for key, item in plain.items()
            if item not in (None, [], {}) or (key == "labelSelector" and item is not None)
        }
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


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
