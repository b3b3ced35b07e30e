"""Nodes that a model's pods may run on, and their devices.

Pure: nodes as the API server returns them in, :class:`Device` values for the fit out. A GPU's name and memory
come from the labels of NVIDIA's GPU feature discovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wisp_operator.api import Gpu, InferenceModel
from wisp_operator.api.quantities import bytes_of
from wisp_operator.core.fit.verdict import Device, of_card
from wisp_operator.desired.pod.placement import HOST_LABEL, MEMORY_LABEL, PRODUCT_LABEL
from wisp_plan.errors import UnknownCard
from wisp_plan.hardware.gpus import DEFAULT_FRACTION, card_of_labels

Node = Mapping[str, Any]


def eligible(gpu: Gpu, nodes: Iterable[Node]) -> list[Node]:
    """The nodes that ``spec.gpu`` allows, taken or not."""
    return [node for node in nodes if _allows(gpu, _labels(node)) and _has_gpus(gpu, node)]


def host_names(nodes: Iterable[Node]) -> list[str]:
    """Host names of nodes, as a node selector names them."""
    return sorted(_labels(node).get(HOST_LABEL, node["metadata"]["name"]) for node in nodes)


def devices(gpu: Gpu, nodes: Sequence[Node]) -> dict[str, Device]:
    """Devices of these nodes by GPU product (``""`` for the CPU), the smallest of each.

    A node whose GPU is not described by labels is left out.
    """
    smallest: dict[str, Device] = {}
    for node in nodes:
        product, device = _device(gpu, node)
        if device and (product not in smallest or device.available_bytes < smallest[product].available_bytes):
            smallest[product] = device
    return smallest


def pin_to_products(model: InferenceModel, products: Iterable[str]) -> InferenceModel:
    """Restrict a model to these GPU products; for clusters where not every GPU is large enough."""
    gpu = replace(model.spec.gpu, product=tuple(sorted(products)))
    return replace(model, spec=replace(model.spec, gpu=gpu))


def _device(gpu: Gpu, node: Node) -> tuple[str, Device | None]:
    if gpu.count == 0:
        memory = node.get("status", {}).get("allocatable", {}).get("memory", "")
        try:
            return "", Device("cpu", "CPU", int(bytes_of(memory) * DEFAULT_FRACTION))
        except ValueError:
            return "", None
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


def _has_gpus(gpu: Gpu, node: Node) -> bool:
    allocatable = node.get("status", {}).get("allocatable", {})
    return int(allocatable.get(gpu.resource_name, 0)) >= gpu.count


def _labels(node: Node) -> Mapping[str, str]:
    labels: Mapping[str, str] = node["metadata"].get("labels", {})
    return labels
