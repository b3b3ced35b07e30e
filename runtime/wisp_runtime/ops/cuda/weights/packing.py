"""Tiling of weight matrices on the GPU: 128B-swizzled blocks of 64 x 64, see ``kernels/README.md``.

Its reference implementation is :mod:`wisp_runtime.ops.reference.packing`.
"""

from __future__ import annotations

from dataclasses import dataclass

import cupy as cp
import numpy as np

from wisp_plan.weights.layout import BLOCK, packed_elements
from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import require, require_aligned, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.protocol.weights.row_permutation import RowPermutation, interleaved_head_size

_THREADS = constants()["pack_threads"]
_BLOCKS_AT_ONCE, _ROWS_AT_ONCE = constants()["pack_tiles"], _THREADS // 8  # share of a thread block
_SOURCES = {BF16: "pack_bf16", np.dtype(np.float16): "pack_f16", np.dtype(np.float32): "pack_f32"}
_PLAIN, _GATE, _UP = 0, 1, 2


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight matrix ``[out, in]`` on the GPU.

    Attributes:
        storage: ``[elements(out, in)]`` bf16; padding is zero.
        outputs: number of rows.
        inputs: number of columns, a multiple of 8.
        permutation: row permutation. Interleaved gate and up have a multiple of 8 rows each, interleaved
            heads are whole.
    """

    storage: Array
    outputs: int
    inputs: int
    permutation: RowPermutation = "plain"

    @property
    def k_tiles(self) -> int:
        """Blocks of 64 columns in a row of blocks."""
        return -(-self.inputs // BLOCK)


def elements(outputs: int, inputs: int) -> int:
    """Return the number of elements of a packed ``[outputs, inputs]`` matrix, padding included."""
    return packed_elements(outputs, inputs)


def pack_rows(device: Gpu, rows: Array, weight: PackedMatrix, first: int) -> None:
    """Store rows of a checkpoint in ``weight``, on the device's stream.

    GEMMs prefetch weights before the kernel ahead of them has ended: synchronise between the last packing and
    the first GEMM.

    Args:
        device: the GPU.
        rows: ``[R, in]`` bf16, float16 or float32 on the GPU, contiguous.
        weight: matrix whose padding is zero already.
        first: index of the first row; interleaved gate and up count as all of gate, then all of up.

    Raises:
        ShapeError: an array differs from the above, or the rows do not lie inside the matrix.
    """
    entry = _SOURCES.get(rows.dtype)
    if entry is None:
        raise ShapeError(f"pack: rows are {rows.dtype}, must be {', '.join(map(str, _SOURCES))}")
    _check("pack", rows, weight, first)
    kernel = device.kernels.get("pack", entry)
    for begin, end, at, code in row_runs(weight.outputs, weight.permutation, first, first + len(rows)):
        arguments = _counts(end - begin, at, weight, code)
        part = rows[begin - first : end - first]
        kernel.launch(_grid(end - begin, weight), _THREADS, part, weight.storage, *arguments)


def unpack_rows(device: Gpu, weight: PackedMatrix, first: int, count: int) -> Array:
    """Return rows ``first:first + count`` of ``weight``, counted as by :func:`pack_rows`: ``[count, in]``."""
    out = cp.empty((count, weight.inputs), BF16)
    _check("unpack", out, weight, first)
    kernel = device.kernels.get("pack", "unpack")
    for begin, end, at, code in row_runs(weight.outputs, weight.permutation, first, first + count):
        arguments = _counts(end - begin, at, weight, code)
        part = out[begin - first : end - first]
        kernel.launch(_grid(end - begin, weight), _THREADS, weight.storage, part, *arguments)
    return out


def _check(op: str, rows: Array, weight: PackedMatrix, first: int) -> None:
    count, columns = len(rows), weight.inputs
    require(op, "rows", rows, (count, columns), rows.dtype)
    require(op, "the packed matrix", weight.storage, (elements(weight.outputs, columns),), BF16)
    require_aligned(op, "the packed matrix", weight.storage)
    require_true(columns % 8 == 0, f"{op}: the matrix has {columns} columns, must be a multiple of 8")
    check_rows(op, weight.outputs, weight.permutation, first, count)


def check_rows(op: str, outputs: int, permutation: RowPermutation, first: int, count: int) -> None:
    """Require that ``count`` rows from ``first`` on lie in a matrix of ``outputs`` rows of ``permutation``.

    Raises:
        ShapeError: they do not, or the matrix has no whole number of what the permutation interleaves.
    """
    unit = interleaved_head_size(permutation) or (16 if permutation == "gate_up_interleaved" else 1)
    is_even = outputs % unit == 0
    require_true(is_even, f"{op}: {outputs} rows of {permutation}, must be a multiple of {unit}")
    fits = first >= 0 and first + count <= outputs
    require_true(fits, f"{op}: rows {first}:{first + count} of a matrix of {outputs}")


def row_runs(
    outputs: int, permutation: RowPermutation, first: int, end: int
) -> list[tuple[int, int, int, int]]:
    """Split rows between gate and up: first and end of each run, position in its half, the order."""
    if permutation != "gate_up_interleaved":
        order = interleaved_head_size(permutation) or _PLAIN
        return [(first, end, first, order)] if end > first else []
    half = outputs // 2
    runs = ((first, min(end, half), first, _GATE), (max(first, half), end, max(first, half) - half, _UP))
    return [run for run in runs if run[1] > run[0]]


def _counts(count: int, at: int, weight: PackedMatrix, code: int) -> tuple[np.int32, ...]:
    return tuple(np.int32(value) for value in (count, at, weight.inputs, weight.k_tiles, code))


def _grid(count: int, weight: PackedMatrix) -> tuple[int, int]:
    return -(-weight.k_tiles // _BLOCKS_AT_ONCE), -(-count // _ROWS_AT_ONCE)
