"""Nodes that a model's pods may run on, and their devices.

Pure: nodes as the API server returns them in, :class:`Device` values for the fit out. A GPU's name and memory
come from the labels of NVIDIA's GPU feature discovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wisp_operator.api import Gpu, InferenceModel, Spec
from wisp_operator.api.pod_template import NodeRequirement, NodeTerm
from wisp_operator.api.quantities import bytes_of
from wisp_operator.core.fit.verdict import Device, of_card
from wisp_operator.desired.pod.placement import HOST_LABEL, MEMORY_LABEL, PRODUCT_LABEL
from wisp_plan.errors import UnknownCard
from wisp_plan.hardware.gpus import DEFAULT_FRACTION, card_of_labels

Node = Mapping[str, Any]


def eligible(spec: Spec, nodes: Iterable[Node]) -> list[Node]:
    """The nodes that ``spec.gpu`` and the required node affinity allow, taken or not."""
    gpu, affinity = spec.gpu, spec.pod_template.affinity
    wanted = affinity.node_affinity if affinity else None
    selector = wanted.required_during_scheduling_ignored_during_execution if wanted else None
    terms = selector.node_selector_terms if selector else ()
    return [
        node
        for node in nodes
        if _allows(gpu, _labels(node)) and _has_gpus(gpu, node) and _meets_one(terms, _labels(node))
    ]


def host_names(nodes: Iterable[Node]) -> list[str]:
    """Host names of nodes, as a node selector names them."""
    return sorted(_labels(node).get(HOST_LABEL, node["metadata"]["name"]) for node in nodes)


def devices(spec: Spec, nodes: Sequence[Node]) -> dict[str, Device]:
    """Devices of these nodes by GPU product (``""`` for the CPU), the smallest of each.

    A node whose GPU is not described by labels is left out.
    """
    smallest: dict[str, Device] = {}
    for node in nodes:
        product, device = _device(spec, node)
        if device and (product not in smallest or device.available_bytes < smallest[product].available_bytes):
            smallest[product] = device
    return smallest


def pin_to_products(model: InferenceModel, products: Iterable[str]) -> InferenceModel:
    """Restrict a model to these GPU products; for clusters where not every GPU is large enough."""
    gpu = replace(model.spec.gpu, product=tuple(sorted(products)))
    return replace(model, spec=replace(model.spec, gpu=gpu))


def _device(spec: Spec, node: Node) -> tuple[str, Device | None]:
    if spec.gpu.count == 0:
        memory, limit = (
            node.get("status", {}).get("allocatable", {}).get("memory", ""),
            spec.resources.limits.memory,
        )
        try:
            available_bytes = min([bytes_of(memory), *([limit.bytes] if limit else [])])
        except ValueError:
            return "", None
        return "", Device("cpu", "CPU", int(available_bytes * DEFAULT_FRACTION))
    try:
        return _labels(node).get(PRODUCT_LABEL, ""), of_card(card_of_labels(_labels(node)))
    except UnknownCard:
        return "", None


def _allows(gpu: Gpu, labels: Mapping[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in gpu.node_selector.items()):
        return False
    if gpu.product and labels.get(PRODUCT_LABEL) not in gpu.product:
        return False
    if gpu.memory is None:
        return True
    mib = labels.get(MEMORY_LABEL, "")
    return mib.isdigit() and int(mib) * 2**20 >= gpu.memory.bytes


def _meets_one(terms: Sequence[NodeTerm], labels: Mapping[str, str]) -> bool:
    return not terms or any(
        all(_meets(requirement, labels.get(requirement.key)) for requirement in term.match_expressions)
        for term in terms
    )


def _meets(requirement: NodeRequirement, value: str | None) -> bool:
    """Whether a node with this value of the label (None: without it) meets the condition."""
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    bound = requirement.values[0] if len(requirement.values) == 1 else ""
    if value is None or not (value.isdecimal() and bound.isdecimal()):
        return False
    return int(value) > int(bound) if requirement.operator == "Gt" else int(value) < int(bound)


def _has_gpus(gpu: Gpu, node: Node) -> bool:
    allocatable = node.get("status", {}).get("allocatable", {})
    return int(allocatable.get(gpu.resource_name, 0)) >= gpu.count


def _labels(node: Node) -> Mapping[str, str]:
    labels: Mapping[str, str] = node["metadata"].get("labels", {})
    return labels
