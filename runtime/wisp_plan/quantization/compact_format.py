"""Format of a quantized matrix on the CPU: a code of one or two bytes a weight, and scales of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TILE_OUTPUTS = 32
"""Outputs of a tile of the CPU's matrices (``ops/cpu/packed.py``)."""

ALIGNMENT_BYTES = 256
"""Codes, scales and minima each start at a multiple of so many bytes."""

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class CompactFormat:
    """Codes of a matrix, and the factors that make them weights: ``code * scale + minimum``.

    Attributes:
        code: dtype of a code; bf16 where the numbers are E4M3, or integers of nine bits.
        group: columns that share a scale; they divide the matrix's.
        has_minima: whether each scale has a minimum.
    """

    code: Literal["int8", "bf16"]
    group: int
    has_minima: bool

    @property
    def code_bytes(self) -> int:
        """Bytes of a code."""
        return 1 if self.code == "int8" else 2

    def sizes(self, outputs: int, inputs: int) -> tuple[int, int, int]:
        """Return the bytes of codes, scales and minima of an ``[outputs, inputs]`` matrix, each aligned."""
        rows = -(-outputs // TILE_OUTPUTS) * TILE_OUTPUTS
        scales = _aligned(rows * (inputs // self.group) * _FLOAT32_BYTES)
        return _aligned(rows * inputs * self.code_bytes), scales, scales * self.has_minima


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
