"""Weight formats: storage of a projection in a checkpoint and in memory, and its size in bytes.

Only projections are quantized; embeddings, the head, norms and biases stay in the device's own dtype. A
format that a device has kernels for is held as it is stored; any other needs ``decode``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from wisp_plan.checkpoint.header import DTYPE_BITS
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import COMPUTABLE_DTYPES
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.layout import held_elements, packed_shape

Device = Literal["cuda", "cpu"]

VALUES = "values"
"""Name of the stored part that holds the quantized weights themselves."""

_SCALE_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "e8m0": 1, "e4m3": 1}


@dataclass(frozen=True, slots=True)
class ScaleLayout:
    """Scales of a projection: one for each block of its weights.

    Attributes:
        rows, columns: extent of a block; 0: the whole axis. A scale a row is (1, 0), a group of 128 (1, 128).
        dtype: dtype of a scale in memory.
    """

    rows: int
    columns: int
    dtype: Literal["f32", "bf16", "f16", "e8m0", "e4m3"]

    def size_bytes(self, out: int, into: int) -> int:
        """Bytes of the scales of an ``[out, into]`` projection."""
        return blocks(out, self.rows) * blocks(into, self.columns) * _SCALE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One of the tensors in which a checkpoint stores a quantized projection.

    Attributes:
        name: :data:`VALUES`, or the suffix of the weight that holds the part: ``scale``, ``zero_point``.
        tensor: its name; ``{weight}`` stands for the unquantized tensor's, ``{layer}`` for that without
            ``.weight``.
        dtypes: dtypes that it may have, by safetensors' names.
        rows, columns: weights that one of its elements stands for along each axis; 0: the whole axis. A scale
            of a whole tensor is held once a row, as tensors with different scales are stacked.
        tail: length of a last axis that is split off, as in MXFP4's ``[…, in / 32, 16]``; 0: none.
        dtype: dtype in which a part other than the values is held.
    """

    name: str
    tensor: str
    dtypes: tuple[str, ...]
    rows: int = 1
    columns: int = 1
    tail: int = 0
    dtype: str = "F32"


Decode = Callable[[Any, Mapping[str, Any]], Any]
"""``decode(values, parts)``: float32 weights ``[R, in]`` of some stored rows. Every other part is an array
``[R, in]``, or ``[R, 1]`` where one element stands for a whole row."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Format of a projection.

    Attributes:
        name: name on the command line (``--quantization``).
        bits: bits of one weight.
        scales: layout of the scales; None: there are none.
        has_zero_points: whether each scale has a zero point of ``bits`` bits.
        tensor_bytes: bytes of scales beside those, once a tensor.
        stored: tensors in a checkpoint, the values first; empty: checkpoints in this format are not read.
        decode: dequantization on the host, for devices without kernels for the format.
    """

    name: str
    bits: int
    scales: ScaleLayout | None = None
    has_zero_points: bool = False
    tensor_bytes: int = 0
    stored: tuple[StoredPart, ...] = ()
    decode: Decode | None = None

    def weight_bytes(self, out: int, into: int) -> int:
        """Bytes of an ``[out, into]`` projection, without scales."""
        return out * -(-into * self.bits // 8)

    def scales_bytes(self, out: int, into: int) -> int:
        """Bytes of the scales and zero points of an ``[out, into]`` projection."""
        if self.scales is None:
            return self.tensor_bytes
        zero_points = 0
        if self.has_zero_points:
            groups = blocks(out, self.scales.rows) * blocks(into, self.scales.columns)
            zero_points = -(-groups * self.bits // 8)
        return self.scales.size_bytes(out, into) + zero_points + self.tensor_bytes


def blocks(extent: int, block: int) -> int:
    """Count the blocks along an axis; a block of 0 is the whole axis."""
    return -(-extent // block) if block else 1


FORMATS = {
    "bf16": WeightFormat("bf16", 16, stored=(StoredPart(VALUES, "{weight}", COMPUTABLE_DTYPES),)),
    "fp8": WeightFormat("fp8", 8, ScaleLayout(1, 0, "f32")),
    "int8": WeightFormat("int8", 8, ScaleLayout(1, 0, "f32")),
    "int4": WeightFormat("int4", 4, ScaleLayout(1, 128, "bf16")),
    "nvfp4": WeightFormat("nvfp4", 4, ScaleLayout(1, 16, "e4m3"), tensor_bytes=4),
}
"""All formats by name, the most faithful first. Another is registered by adding it here."""


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
