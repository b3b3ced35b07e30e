"""Tensors of the checkpoint to write, from the headers of the one that is read; no weight is read here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import COMPUTABLE_DTYPES, WeightSource, WeightSpec
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.stored import as_stored
from wisp_runtime.quantize.formats import Layout, OutputTensor, TargetFormat, divides

HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class CopiedTensor:
    """A tensor that keeps its dtype."""

    source: TensorInfo

    @property
    def tensors(self) -> tuple[OutputTensor, ...]:
        """The tensor as it is written."""
        return (OutputTensor(self.source.name, self.source.dtype, self.source.shape),)


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A projection that is quantized.

    Attributes:
        source: ``[N, K]`` in 16 or 32 bits.
        group: columns that share a scale; 0: the whole row.
        layout: the tensors that are written.
        scale_dtype: dtype of an INT4 group's scale.
        fused: tensors that are computed together with it, itself included; they share a tensor scale.
    """

    source: TensorInfo
    group: int
    layout: Layout
    scale_dtype: str
    fused: tuple[TensorInfo, ...]

    @property
    def layer(self) -> str:
        """Name of the layer: the tensor's without ``.weight``."""
        return self.source.name.removesuffix(".weight")

    @property
    def tensors(self) -> tuple[OutputTensor, ...]:
        """The tensors that are written."""
        return self.layout.tensors


@dataclass(frozen=True, slots=True)
class KeptLayer:
    """A projection that is not quantized, and the reason."""

    layer: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The tensors to write.

    Attributes:
        items: tensors in the order of the files that are read.
        group: columns that share a scale; 0: the whole row.
        kept: projections that stay as they are.
        unused: layers with a matrix that the model does not use, or not as a projection, such as routers;
            they stay as they are.
    """

    items: tuple[CopiedTensor | QuantizedTensor, ...]
    group: int
    kept: tuple[KeptLayer, ...]
    unused: tuple[str, ...]

    @property
    def quantized(self) -> tuple[QuantizedTensor, ...]:
        """Those of the items that are quantized."""
        return tuple(item for item in self.items if isinstance(item, QuantizedTensor))

    def section(self, target: TargetFormat) -> dict[str, object]:
        """Return the ``quantization_config`` of the result."""
        ignored = [HEAD, *(kept.layer for kept in self.kept), *self.unused]
        return target.section(self.group, list(dict.fromkeys(ignored)))


def plan_checkpoint(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo], target: TargetFormat
) -> CheckpointPlan:
    """Decide for each tensor of a checkpoint that matches ``spec`` whether it is quantized, and how."""
    declared = as_stored(declare(spec), tensors, None)
    candidates = [weight for weight in declared if weight.role == "projection"]
    reasons = {weight.name: _reason_to_keep(weight, tensors) for weight in candidates}
    group = _group(target, [weight for weight in candidates if reasons[weight.name] is None])
    quantized: dict[str, QuantizedTensor] = {}
    kept: list[KeptLayer] = []
    for weight in candidates:
        reason = reasons[weight.name] or _reason_of_columns(weight, group)
        if reason:
            kept += (KeptLayer(source.tensor.removesuffix(".weight"), reason) for source in weight.sources)
        else:
            quantized |= {item.source.name: item for item in _quantized(weight, tensors, target, group)}
    used = {source.tensor for weight in declared if weight.is_matrix for source in weight.sources}
    listed = sorted(tensors.values(), key=lambda tensor: (tensor.file, tensor.start))
    unused = (
        tensor.name.removesuffix(".weight")
        for tensor in listed
        if tensor.name not in used and tensor.name.endswith(".weight") and len(tensor.shape) > 1
    )
    items = (quantized.get(tensor.name, CopiedTensor(tensor)) for tensor in listed)
    return CheckpointPlan(tuple(items), group, tuple(kept), tuple(unused))


def _quantized(
    weight: WeightSpec, tensors: Mapping[str, TensorInfo], target: TargetFormat, group: int
) -> Iterable[QuantizedTensor]:
    matrices: dict[tuple[int, ...], list[TensorInfo]] = {}
    for source in weight.sources:
        matrices.setdefault(source.at[:-2], []).append(tensors[source.tensor])
    for fused in map(tuple, matrices.values()):
        for tensor in fused:
            rows, columns = tensor.shape
            scale_dtype = "F16" if tensor.dtype == "F16" else "BF16"
            layout = target.layout(tensor.name, (rows, columns), group, scale_dtype)
            yield QuantizedTensor(tensor, group, layout, scale_dtype, fused)


def _group(target: TargetFormat, weights: Iterable[WeightSpec]) -> int:
    elements: Counter[int] = Counter()
    for weight in weights:
        elements[weight.shape[-1]] += math.prod(weight.shape)
    return target.choose_group(elements)


def _reason_to_keep(weight: WeightSpec, tensors: Mapping[str, TensorInfo]) -> str | None:
    if not all(_is_complete(source) for source in weight.sources):
        return "it is a part of a tensor, or one of several in it"
    if any(tensors[source.tensor].dtype not in COMPUTABLE_DTYPES for source in weight.sources):
        return "it is stored in a dtype of its own"
    return None if weight.is_rounded else "it is too small to be worth rounding"


def _reason_of_columns(weight: WeightSpec, group: int) -> str | None:
    columns = weight.shape[-1]
    return None if divides(group, columns) else f"its {columns} columns do not split into groups of {group}"


def _is_complete(source: WeightSource) -> bool:
    """Whether a source is one whole ``[N, K]`` tensor under a name that can be quantized."""
    is_all = source.slices == tuple(map(range, source.shape))
    return is_all and source.view is None and len(source.shape) == 2 and source.tensor.endswith(".weight")
