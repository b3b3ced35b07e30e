"""How weights and keys/values may be held in memory, and how many bytes each way costs.

Only projections are quantized; embeddings, the head, norms and biases stay as they are. The layouts here
are what the kernels read (``kernels/README.md``); whether a build has kernels for a format is not known here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.layout import held_elements, packed_shape, stacked_tensors
from wisp_plan.weights.tensors import expected_tensors

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A way to hold a projection ``[out, in]``.

    Attributes:
        name: as ``--quantization`` names it.
        bits: of one weight.
        group: weights along ``in`` that share a scale; 0 is one scale per row.
        scale_bytes: of one scale; 0 means that there are none.
        tensor_bytes: beside those, once per projection.
    """

    name: str
    bits: int
    group: int = 0
    scale_bytes: int = 0
    tensor_bytes: int = 0

    def weight_bytes(self, out: int, into: int) -> int:
        """Bytes of the weights of a projection, without scales."""
        return out * -(-into * self.bits // 8)

    def scales_bytes(self, out: int, into: int) -> int:
        """Bytes of the scales of a projection."""
        groups = -(-into // self.group) if self.group else 1
        return out * groups * self.scale_bytes + self.tensor_bytes


FORMATS = {
    "bf16": WeightFormat("bf16", 16),
    "fp8": WeightFormat("fp8", 8, scale_bytes=4),
    "int8": WeightFormat("int8", 8, scale_bytes=4),
    "int4": WeightFormat("int4", 4, group=128, scale_bytes=2),
    "nvfp4": WeightFormat("nvfp4", 4, group=16, scale_bytes=1, tensor_bytes=4),
}
"""All formats, the most faithful first."""


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Memory for a model's weights: the numbers themselves, and the scales of the quantized ones."""

    weights: int
    scales: int


@lru_cache(maxsize=256)
def weight_bytes(spec: ModelSpec, format_name: str, device: Device) -> WeightBytes:
    """Count the bytes of all weights of ``spec`` in memory.

    Args:
        format_name: of the projections; what is not quantized is held in bf16.
        device: on ``cpu`` everything is float32; on ``cuda`` the padding of :mod:`.layout` is counted too.
    """
    if device == "cpu":
        return WeightBytes(sum(math.prod(one.shape) for one in expected_tensors(spec)) * 4, 0)
    chosen = FORMATS[format_name]
    weights = scales = 0
    for tensor in stacked_tensors(spec):
        if tensor.role == "projection" and chosen.bits != 16:
            weights += chosen.weight_bytes(*packed_shape(*tensor.shape))
        else:
            weights += held_elements(tensor.shape) * 2
    for tensor in expected_tensors(spec):
        if tensor.role == "projection" and chosen.scale_bytes:
            scales += chosen.scales_bytes(*tensor.shape)
    return WeightBytes(weights, scales)


def parameters(spec: ModelSpec) -> int:
    """Count the parameters of ``spec``; tied embeddings count once."""
    return sum(math.prod(tensor.shape) for tensor in expected_tensors(spec))
