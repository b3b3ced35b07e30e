"""Layout of weights in a GPU's memory: matrices padded to blocks, every weight aligned.

The runtime's allocation and the ledger's count are the same numbers, because both come from here.
"""

from __future__ import annotations

import math

from wisp_plan.checkpoint.header import DTYPE_BITS
from wisp_plan.quantization.packed_format import TILE_ROWS
from wisp_plan.spec.weight import WeightSpec

BLOCK = 64
"""Rows, and columns, of a block of a packed matrix (``kernels/README.md``)."""

ALIGNMENT_ELEMENTS = 64
"""Every weight starts at a multiple of so many elements: 128 bytes of bf16, 256 of float32."""


def padded(count: int, multiple: int = BLOCK) -> int:
    """Round ``count`` up to a ``multiple``."""
    return -(-count // multiple) * multiple


def packed_shape(outputs: int, inputs: int) -> tuple[int, int]:
    """Return the shape of an ``[outputs, inputs]`` matrix on a GPU, its padding included."""
    return padded(outputs), padded(inputs)


def packed_elements(outputs: int, inputs: int) -> int:
    """Count the elements of an ``[outputs, inputs]`` matrix on a GPU, its padding included."""
    return math.prod(packed_shape(outputs, inputs))


def held_elements(weight: WeightSpec) -> int:
    """Count the elements of an unquantized weight in a GPU's arena, alignment of the next one included."""
    *leading, outputs, inputs = (1, 1, *weight.shape)
    elements = packed_elements(outputs, inputs) if weight.is_matrix else outputs * inputs
    return padded(math.prod(leading) * elements, ALIGNMENT_ELEMENTS)


def held_bytes(weight: WeightSpec) -> tuple[int, int]:
    """Count the bytes of a weight in a GPU's arena: weights, and scales with their padding."""
    if weight.held is None:
        return held_elements(weight) * DTYPE_BITS[weight.dtype or "BF16"] // 8, 0
    *leading, outputs, inputs = weight.shape
    row_tiles, column_tiles = weight.held.tiles(outputs, inputs)
    codes = row_tiles * column_tiles * TILE_ROWS * weight.held.tile_columns * weight.held.bits // 8
    whole = weight.held.sections(outputs, inputs)[2]
    return math.prod(leading) * codes, math.prod(leading) * (whole - codes)
