"""Weights of a model as the persistent kernel finds them: the table of layers, the experts' strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wisp_plan.memory.buffers.persistent import ROUTER_BIAS, SHARED_GATE, optional_weights
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Array
from wisp_runtime.errors import KernelsMissing
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device
from wisp_runtime.ops.cuda.moe.matrices import ExpertMatrices
from wisp_runtime.ops.cuda.persistent.arguments import (
    DELTA_DTYPES,
    ROUTER,
    delta_weights,
    layer_table,
    matrices,
    require_repeated,
)
from wisp_runtime.ops.cuda.persistent.model import step_format
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage
from wisp_runtime.ops.protocol.attention import KvEncoding
from wisp_runtime.ops.protocol.weights.storage import HeldWeight, NamedWeights


def device_table(weights: NamedWeights, spec: ModelSpec, encodings: Sequence[KvEncoding]) -> Array:
    """Return :func:`.arguments.layer_table` on the device."""

    def words(address: int) -> Array:
        return layer_table(spec, lambda name: _pointer(weights.get(name)), encodings, address)

    table = to_device(words(0))
    table.set(words(table.data.ptr))
    return table


def expert_strides(weights: NamedWeights, spec: ModelSpec) -> dict[str, int]:
    """Return the bytes between the packed matrices of two experts, equal in all layers; 0 without experts.

    Raises:
        KernelsMissing: they differ between layers, a router, its bias or a shared expert's gate is not bf16,
            or a shared expert is not held as the others are.
    """
    strides = {"gate_up_stride": 0, "down_stride": 0}
    if not spec.ffns(MoeSpec):
        return strides
    prefixes = [f"layers.{layer}" for layer in range(len(spec.layers))]
    has_shared = SHARED_GATE in optional_weights(spec)
    routers = [
        weights.get(f"{prefix}.{name}") for prefix in prefixes for name in (ROUTER, ROUTER_BIAS, SHARED_GATE)
    ]
    if any(array is not None and array.dtype != BF16 for array in routers):
        raise KernelsMissing("its router has float32 weights; the persistent kernel reads bf16.")
    for name in strides:
        weight = f"{name.removesuffix('_stride')}.weight"
        experts = {prefix: ExpertMatrices.of(weights[f"{prefix}.experts.{weight}"]) for prefix in prefixes}
        distances = {matrices.distance_bytes for matrices in experts.values()}
        if len(distances) > 1:
            raise KernelsMissing(f"matrices of experts.{weight} lie at distances that differ by layer.")
        shared = [weights[f"{prefix}.shared.{weight}"] for prefix in prefixes if has_shared]
        if not all(map(ExpertMatrices.is_followed_by, experts.values(), shared)):
            raise KernelsMissing(
                f"shared.{weight} is held in another format, or elsewhere, than the experts'."
            )
        strides[name] = distances.pop()
    return strides


def weight_format_of(weights: NamedWeights, spec: ModelSpec) -> str:
    """Return the formats of all layers' matrices and of the head, :func:`.model.step_format`.

    Raises:
        KernelsMissing: the layers have several, or a weight that the kernel reads unquantized is not.
    """
    _require_plain(weights, spec)
    held = {name: _first(weights.get(name)) for name in matrices(spec)}
    formats = {
        name: weight.packed.name if isinstance(weight, QuantizedStorage) else "bf16"
        for name, weight in held.items()
        if isinstance(weight, QuantizedStorage | PackedMatrix)
    }
    made = step_format(formats)
    if ", " in made:
        raise KernelsMissing(f"its layers have weights in several formats: {made}")
    return made


def _require_plain(weights: NamedWeights, spec: ModelSpec) -> None:
    """Refuse the weights of a Gated DeltaNet beside its projections unless the kernel reads their dtypes."""
    layers = require_repeated(spec)
    for index in range(len(spec.layers)):
        for name, dtype in zip(delta_weights(layers, index), DELTA_DTYPES, strict=False):
            weight: Any = weights[name]
            held = weight.storage if isinstance(weight, PackedMatrix) else weight
            if isinstance(held, QuantizedStorage) or held.dtype != dtype:
                what = held.packed.name if isinstance(held, QuantizedStorage) else held.dtype
                raise KernelsMissing(f"{name} is held in {what}; the persistent kernel reads {dtype}.")


def _first(weight: HeldWeight) -> HeldWeight:
    """Return a weight, or the first of the experts' matrices."""
    return weight[0] if isinstance(weight, tuple) else weight


def _pointer(weight: HeldWeight) -> int:
    first = _first(weight)
    storage = getattr(first, "storage", first)
    return 0 if storage is None else int(storage.data.ptr)
