"""Weight formats: numbers and scales of a projection as a device holds them, and their size in bytes.

Only projections and the head are quantized; embeddings, norms and biases stay in the device's own dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
class WeightFormat:
    """Format of a projection.

    Attributes:
        name: name on the command line (``--quantization``).
        bits: bits of one weight.
        scales: layout of the scales; None: there are none.
        has_zero_points: whether each scale has a zero point of ``bits`` bits.
        tensor_bytes: bytes of scales beside those, once a tensor.
    """

    name: str
    bits: int
    scales: ScaleLayout | None = None
    has_zero_points: bool = False
    tensor_bytes: int = 0

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
    "bf16": WeightFormat("bf16", 16),
    "fp8": WeightFormat("fp8", 8, ScaleLayout(1, 0, "f32")),
    "int8": WeightFormat("int8", 8, ScaleLayout(1, 0, "f32")),
    "int4": WeightFormat("int4", 4, ScaleLayout(1, 128, "bf16")),
    "nvfp4": WeightFormat("nvfp4", 4, ScaleLayout(1, 16, "e4m3"), tensor_bytes=4),
}
"""All formats by name, the most faithful first. Another is registered by adding it here."""
