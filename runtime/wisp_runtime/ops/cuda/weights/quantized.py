"""Quantized weight matrices on the GPU, in the order of :mod:`wisp_plan.quantization.packed_format`.

Its reference implementation is :mod:`wisp_runtime.ops.reference.quantized_packing`.
"""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.quantization.packed_format import PackedFormat
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.row_permutation import RowPermutation


@dataclass(frozen=True, slots=True)
class QuantizedStorage:
    """A quantized weight matrix ``[out, in]`` on the GPU.

    Attributes:
        storage: ``[packed.sections(out, in)[2]]`` uint8: tiles, block scales, row scales.
        outputs: number of rows.
        inputs: number of columns, a multiple of 16.
        permutation: row permutation, of scales as of codes.
        packed: format of the numbers and scales.
    """

    storage: Array
    outputs: int
    inputs: int
    permutation: RowPermutation
    packed: PackedFormat
