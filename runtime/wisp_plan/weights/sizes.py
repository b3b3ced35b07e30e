"""Sizes of a model's weights in a device's memory, and its number of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from wisp_plan.checkpoint.header import DTYPE_BITS
from wisp_plan.quantization.weight_format import FORMATS
from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.layout import held_elements, packed_shape

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Memory for a model's weights: the weights themselves, and the scales of the quantized ones."""

    weights: int
    scales: int


@lru_cache(maxsize=256)
def weight_bytes(spec: ModelSpec, format_name: str, device: Device) -> WeightBytes:
    """Count the bytes of all weights of ``spec`` in memory.

    Args:
        format_name: format of the projections; all else is held in bf16, or in a dtype of its own.
        device: ``cpu`` holds everything in float32; ``cuda`` adds the padding of :mod:`.layout`.
    """
    if device == "cpu":
        return WeightBytes(parameters(spec) * 4, 0)
    projection, weights, scales = FORMATS[format_name], 0, 0
    for weight in declare(spec):
        if weight.role != "projection" or projection.bits == 16:
            weights += held_elements(weight) * DTYPE_BITS[weight.dtype or "BF16"] // 8
            continue
        matrices = math.prod(weight.shape[:-2])
        weights += matrices * projection.weight_bytes(*packed_shape(*weight.shape[-2:]))
        for source in weight.sources:
            *leading, out, into = map(len, source.slices)
            scales += math.prod(leading) * projection.scales_bytes(out, into)
    return WeightBytes(weights, scales)


def parameters(spec: ModelSpec) -> int:
    """Count the parameters of ``spec``; tied embeddings count once."""
    return sum(math.prod(weight.shape) for weight in declare(spec))
