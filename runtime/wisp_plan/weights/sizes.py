"""Sizes of a model's weights in a device's memory, and its number of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.held import held_name, held_weights
from wisp_plan.weights.layout import held_bytes

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Memory for a model's weights: the weights themselves, and the scales of the quantized ones."""

    weights: int
    scales: int


@lru_cache(maxsize=256)
def weight_bytes(
    spec: ModelSpec, quantization: str, device: Device, formats: tuple[str, ...] = tuple(PACKED_FORMATS)
) -> WeightBytes:
    """Count the bytes of all weights of ``spec`` in memory.

    Args:
        quantization: format of the projections (:func:`.held.held_format`); all else is held in bf16, or in a
            dtype of its own.
        device: ``cpu`` holds everything in float32; ``cuda`` adds the padding of :mod:`.layout`.
        formats: packed formats that the device has kernels for.
    """
    if device == "cpu":
        return WeightBytes(parameters(spec) * 4, 0)
    sizes = [held_bytes(weight) for weight in held_weights(spec, quantization, formats)]
    return WeightBytes(sum(codes for codes, _ in sizes), sum(scales for _, scales in sizes))


def weight_format(spec: ModelSpec, quantization: str, device: Device, formats: tuple[str, ...]) -> str:
    """Return the formats of projections by name; arguments as of :func:`weight_bytes`."""
    return "float32" if device == "cpu" else held_name(held_weights(spec, quantization, formats))


def parameters(spec: ModelSpec) -> int:
    """Count the parameters of ``spec``; tied embeddings count once."""
    return sum(math.prod(weight.shape) for weight in declare(spec))
