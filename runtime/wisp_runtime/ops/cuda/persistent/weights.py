"""Weights of a model as the persistent kernel finds them: the table of layers, the experts' strides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Array
from wisp_runtime.errors import KernelsMissing
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device
from wisp_runtime.ops.cuda.moe.matrices import ExpertMatrices
from wisp_runtime.ops.cuda.persistent.arguments import ROUTER, layer_weights, scales_word
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage
from wisp_runtime.ops.protocol.attention import KvEncoding
from wisp_runtime.ops.protocol.weights import HeldWeight, NamedWeights


def layer_table(weights: NamedWeights, spec: ModelSpec, encodings: Sequence[KvEncoding]) -> Array:
    """Return each layer's pointers and scales, ``[L, 14]``, as ``LayerWeights`` of ``model.cuh``."""
    names = layer_weights(spec)
    rows = [
        [
            *(_pointer(weights.get(f"layers.{layer}.{name}")) for name in names),
            scales_word(encoding),
            _pointer(weights.get(f"layers.{layer}.{ROUTER}")),
        ]
        for layer, encoding in enumerate(encodings)
    ]
    return to_device(np.array(rows, np.uint64))


def expert_strides(weights: NamedWeights, spec: ModelSpec) -> dict[str, int]:
    """Return the bytes between the packed matrices of two experts, equal in all layers; 0 without experts.

    Raises:
        KernelsMissing: they differ between layers, or a router is not bf16.
    """
    strides = {"gate_up_stride": 0, "down_stride": 0}
    if not spec.ffns(MoeSpec):
        return strides
    prefixes = [f"layers.{layer}" for layer in range(len(spec.layers))]
    if any(weights[f"{prefix}.{ROUTER}"].dtype != BF16 for prefix in prefixes):
        raise KernelsMissing("its router has float32 weights; the persistent kernel reads bf16.")
    for name in strides:
        weight = f"experts.{name.removesuffix('_stride')}.weight"
        distances = {ExpertMatrices.of(weights[f"{prefix}.{weight}"]).distance_bytes for prefix in prefixes}
        if len(distances) > 1:
            raise KernelsMissing(f"matrices of {weight} lie at distances that differ by layer.")
        strides[name] = distances.pop()
    return strides


def weight_format_of(weights: NamedWeights, spec: ModelSpec) -> str:
    """Return the format of all layers' matrices, with the head's (``int4+fp8``) if that is not bf16.

    Raises:
        KernelsMissing: the layers have several.
    """
    head = weights.get("head.weight")
    head_format = f"+{head.packed.name}" if isinstance(head, QuantizedStorage) else ""
    names, layers = layer_weights(spec), range(len(spec.layers))
    held = [_first(weights.get(f"layers.{layer}.{name}")) for layer in layers for name in names]
    formats = {
        weight.packed.name if isinstance(weight, QuantizedStorage) else "bf16"
        for weight in held
        if isinstance(weight, QuantizedStorage | PackedMatrix)
    }
    if len(formats) != 1:
        raise KernelsMissing(f"its layers have weights in several formats: {', '.join(sorted(formats))}")
    return formats.pop() + head_format


def _first(weight: HeldWeight) -> HeldWeight:
    """Return a weight, or the first of the experts' matrices."""
    return weight[0] if isinstance(weight, tuple) else weight


def _pointer(weight: HeldWeight) -> int:
    first = _first(weight)
    storage = getattr(first, "storage", first)
    return 0 if storage is None else int(storage.data.ptr)
