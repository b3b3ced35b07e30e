"""Quantized weight matrices on the GPU, in the order of :mod:`wisp_plan.quantization.packed_format`.

Its reference implementations are :mod:`wisp_runtime.ops.reference.quantized_packing` and, of rounding,
:mod:`wisp_runtime.ops.reference.quantizers`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cupy as cp
import numpy as np
from cuda.bindings import driver as cu

from wisp_plan.quantization.packed_format import CODE_BYTES, MAX_COLUMNS, SLICE_ROWS, TILE_ROWS, PackedFormat
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import require, require_true
from wisp_runtime.ops.cuda.device.driver import ok, translate
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.weights.packing import check_rows, row_runs
from wisp_runtime.ops.cuda.weights.quantized_arguments import PackArguments, QuantizeArguments
from wisp_runtime.ops.protocol.weights.row_permutation import RowPermutation
from wisp_runtime.ops.protocol.weights.upload import QuantizedRows

_THREADS = 256
_STEP = 16  # columns that a thread has at once
_SLICES = TILE_ROWS // SLICE_ROWS
_SOURCES = {BF16: "bf16", np.dtype(np.float16): "f16", np.dtype(np.float32): "f32"}
_UINT8, _FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)
_ALIGNMENT = 256  # of arrays in scratch memory
_NAMES = ("codes", "scales of rows", "scales of groups", "zero points", "scales of blocks")

_Shape = tuple[tuple[int, ...], "np.dtype[Any]"]


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


def clear_padding(device: Gpu, weight: QuantizedStorage) -> None:
    """Write integers' middle everywhere, on the device's stream: padding weighs nothing; the rest is zero."""
    packed = weight.packed
    middle = {"int8": 0x80, "int4": 0x88}.get(packed.numbers)
    if middle is None:
        return
    row_tiles, column_tiles = packed.tiles(weight.outputs, weight.inputs)
    slices = row_tiles * column_tiles * _SLICES
    _fill(device, weight.storage.data.ptr, packed.slice_bytes, middle, CODE_BYTES, slices)
    if packed.has_zero_points:
        zeros = weight.storage.data.ptr + packed.zero_points_at
        _fill(device, zeros, packed.slice_bytes, 8, packed.zero_point_bytes, slices)


def pack_quantized(
    device: Gpu, rows: QuantizedRows, weight: QuantizedStorage, first: int, not_finite: Array | None = None
) -> None:
    """Store rows in ``weight``, on the device's stream; synchronize before a GEMM reads them.

    Args:
        device: the GPU.
        rows: ``R`` rows on the GPU, arrays contiguous.
        weight: matrix whose padding is written (:func:`clear_padding`) and whose rows are zero.
        first: index of the first row; interleaved gate and up count as all of gate, then all of up.
        not_finite: ``[1]`` int32, which becomes 1 if a code of E4M3 is NaN; None: it is not reported.

    Raises:
        ShapeError: an array differs from the above, or the rows do not lie inside the matrix.
    """
    packed, count = weight.packed, len(rows)
    _check_rows(rows, weight, first)
    kernel = device.kernels.get("pack_quantized", _pack_entry(packed))
    block_section, row_section, _ = packed.sections(weight.outputs, weight.inputs)
    for begin, end, at, order in row_runs(weight.outputs, weight.permutation, first, first + count):
        part = rows if end - begin == count else rows[begin - first : end - first]
        arguments = PackArguments(
            *map(_pointer, part.arrays),
            weight.storage.data.ptr,
            _pointer(not_finite if packed.numbers == "e4m3" else None),
            block_section,
            row_section,
            end - begin,
            at,
            weight.inputs,
            packed.tiles(weight.outputs, weight.inputs)[1],
            order,
            packed.group,
            packed.slice_bytes,
            packed.group_scale_bytes,
        )
        steps = (end - begin) * (weight.inputs // _STEP)
        kernel.launch((-(-steps // _THREADS),), _THREADS, arguments)


def quantize_rows(
    device: Gpu, rows: Array, packed: PackedFormat, scratch: Any, not_finite: Array | None = None
) -> QuantizedRows:
    """Round rows to nearest, on the device's stream; see :func:`.reference.quantizers.quantize`.

    Args:
        device: the GPU.
        rows: ``[R, in]`` bf16, float16 or float32 on the GPU, contiguous.
        packed: format to round to.
        scratch: pointer to memory of the GPU for the result, :func:`scratch_bytes` of it.
        not_finite: ``[1]`` int32, which becomes 1 if a number is NaN or infinite; None: it is not reported.

    Raises:
        ShapeError: ``rows`` are of another dtype, or their columns no multiple of 16 and of the group.
    """
    source, columns = _SOURCES.get(rows.dtype), rows.shape[1]
    require_true(source is not None, f"quantize: rows are {rows.dtype}, must be bf16, float16 or float32")
    require("quantize", "rows", rows, rows.shape, rows.dtype)
    _check_columns("quantize", packed, columns)
    result = carve(_shapes(packed, len(rows), columns), scratch)
    arguments = QuantizeArguments(
        rows.data.ptr,
        *map(_pointer, result.arrays),
        _pointer(not_finite),
        columns,
        packed.group,
        packed.tiles(1, columns)[1],
    )
    kernel = device.kernels.get("quantize_rows", f"quantize_{_rounding(packed)}_{source}")
    kernel.launch((len(rows),), _THREADS, arguments, shared_bytes=columns // _STEP * 4)
    return result


@lru_cache(maxsize=256)
def scratch_bytes(packed: PackedFormat, rows: int, columns: int) -> int:
    """Return the bytes that ``rows`` quantized rows take where :func:`carve` lays them out."""
    return carved_bytes(_shapes(packed, rows, columns))


def carve(shapes: Iterable[_Shape | None], memory: Any) -> QuantizedRows:
    """See the memory of a GPU as the arrays of quantized rows, one after the other, each aligned.

    Args:
        shapes: shape and dtype of each array; None: there is none.
        memory: pointer to :func:`carved_bytes` of memory.
    """
    arrays: list[Array | None] = []
    for shape in shapes:
        arrays.append(None if shape is None else cp.ndarray(*shape, memory))
        memory = memory + (0 if shape is None else carved_bytes((shape,)))
    return QuantizedRows(*arrays)


def carved_bytes(shapes: Iterable[_Shape | None]) -> int:
    """Return the bytes that :func:`carve` needs."""
    sizes = (math.prod(shape[0]) * shape[1].itemsize for shape in shapes if shape is not None)
    return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)


@lru_cache(maxsize=256)
def _shapes(packed: PackedFormat, rows: int, columns: int) -> tuple[_Shape | None, ...]:
    scale = np.dtype(np.float16) if packed.group_scales == "f16" else _UINT8
    groups = (rows, columns // packed.group) if packed.group else None
    return (
        ((rows, columns * packed.bits // 8), _UINT8),
        ((rows,), _FLOAT32),
        groups and (groups, scale),
        (groups, _UINT8) if groups and packed.has_zero_points else None,
        ((rows, packed.tiles(1, columns)[1]), _FLOAT32) if packed.has_block_scales else None,
    )


def _rounding(packed: PackedFormat) -> str:
    """Return the rounding of a format, as the kernels' entries name it."""
    return {"e4m3": "fp8", "e2m1": packed.shown_name}.get(packed.numbers, packed.numbers)


def _pack_entry(packed: PackedFormat) -> str:
    if packed.bits == 8:
        return "pack_eight_bits"
    return f"pack_{packed.name if packed.numbers == 'e2m1' else packed.numbers}"


def _pointer(array: Array | None) -> int | None:
    return None if array is None else int(array.data.ptr)


def _check_rows(rows: QuantizedRows, weight: QuantizedStorage, first: int) -> None:
    op, columns = "pack_quantized", weight.inputs
    _check_columns(op, weight.packed, columns)
    shapes = _shapes(weight.packed, len(rows), columns)
    for name, array, shape in zip(_NAMES, rows.arrays, shapes, strict=True):
        require_true((array is None) == (shape is None), f"{op}: {weight.packed.name} and its {name}")
        if array is not None and shape is not None:
            require(op, name, array, *shape)
    size_bytes = weight.packed.sections(weight.outputs, columns)[2]
    require(op, "the packed matrix", weight.storage, (size_bytes,), _UINT8)
    check_rows(op, weight.outputs, weight.permutation, first, len(rows))


def _check_columns(op: str, packed: PackedFormat, columns: int) -> None:
    is_whole = columns % _STEP == 0 and columns % (packed.group or 1) == 0 and columns <= MAX_COLUMNS
    needs = f"a multiple of {max(_STEP, packed.group)} up to {MAX_COLUMNS}"
    require_true(is_whole, f"{op}: {columns} columns of {packed.name}, must be {needs}")


def _fill(device: Gpu, address: int, pitch: int, value: int, width: int, height: int) -> None:
    """Enqueue the writing of ``value`` to ``width`` bytes of each of ``height`` rows."""
    with translate("clearing the memory of the weights"):
        ok(
            cu.cuMemsetD2D8Async(address, pitch, value, width, height, cu.CUstream(device.stream.ptr)),
            "clearing the memory of the weights",
        )
