"""Quantized matrices on the CPU: tiles of codes, made float32 a few at a time as they are multiplied.

The numbers are the checkpoint's own. With few rows of activations the sums of each group are scaled, with
many the weights themselves: scaling a weight takes about as long as multiplying it by a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_plan.quantization.compact_format import TILE_OUTPUTS, CompactFormat
from wisp_runtime.batch import Array
from wisp_runtime.ops.cpu.packed import PackedMatrix, packed_shape
from wisp_runtime.ops.cpu.threads import Work, Workers

MAX_SUMMED_ROWS = 8
"""Rows up to which the sums of groups are scaled."""

_SCRATCH_ELEMENTS = 1 << 17  # 512 KiB of float32: half of a core's second cache, or all of a smaller one


@dataclass(frozen=True, slots=True)
class CompactMatrix:
    """A weight matrix ``[out, in]`` of codes, scales and minima in tiles like :class:`.packed.PackedMatrix`.

    Attributes:
        codes: ``[ceil(out / 32), in, 32]`` int8, or uint16: the bits of bf16.
        scales: ``[ceil(out / 32), in / group, 32]`` float32.
        minima: array like ``scales``; None: there are none.
    """

    codes: PackedMatrix
    scales: PackedMatrix
    minima: PackedMatrix | None

    @property
    def outputs(self) -> int:
        """Rows of the matrix."""
        return self.codes.outputs

    @property
    def inputs(self) -> int:
        """Columns of the matrix."""
        return self.codes.inputs


def compact_matrix(storage: Array, layout: CompactFormat, outputs: int, inputs: int) -> CompactMatrix:
    """See ``storage`` ``[bytes]`` uint8 as a matrix in a compact format."""
    codes_bytes, scales_bytes, _ = layout.sizes(outputs, inputs)
    code = np.dtype(np.int8 if layout.code == "int8" else np.uint16)
    shape, groups = packed_shape(outputs, inputs), packed_shape(outputs, inputs // layout.group)

    def seen(start: int, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> PackedMatrix:
        size_bytes = int(np.prod(shape)) * dtype.itemsize
        return PackedMatrix(storage[start : start + size_bytes].view(dtype).reshape(shape), outputs)

    factor = np.dtype(np.float32)
    minima = seen(codes_bytes + scales_bytes, factor, groups) if layout.has_minima else None
    return CompactMatrix(seen(0, code, shape), seen(codes_bytes, factor, groups), minima)


def compact_embedding(tokens: Array, table: CompactMatrix) -> Array:
    """Return row ``tokens[n]`` of ``table`` ``[V, D]`` for each n: ``[N, D]`` float32."""
    tile, row = tokens // TILE_OUTPUTS, tokens % TILE_OUTPUTS
    codes = np.ascontiguousarray(table.codes.tiles[tile, :, row])
    weights = np.empty(codes.shape, np.float32)
    _widen(codes, weights)
    runs = weights.reshape(len(tokens), table.scales.inputs, -1)
    runs *= table.scales.tiles[tile, :, row][:, :, None]
    if table.minima is not None:
        runs += table.minima.tiles[tile, :, row][:, :, None]
    return weights


def compact_linear(
    x: Array,
    weight: CompactMatrix,
    bias: Array | None = None,
    *,
    workers: Workers | None = None,
    row_tile: int | None = None,
) -> Array:
    """Multiply ``y = x W^T + bias`` as :func:`.reference.linear` does.

    Args:
        x, weight, bias, workers: arguments of that function.
        row_tile: rows that are multiplied at a time, by their sums; None: all.
    """
    tiles = weight.codes.tiles
    y = np.empty((len(x), len(tiles), TILE_OUTPUTS), np.float32)
    by_tile = y.swapaxes(0, 1)
    multiply = _multiply_sums if (row_tile or len(x)) <= MAX_SUMMED_ROWS else _multiply_weights
    rows = [slice(first, first + (row_tile or len(x))) for first in range(0, len(x), row_tile or len(x))]
    step = max(1, _SCRATCH_ELEMENTS // (weight.inputs * TILE_OUTPUTS))

    def compute(share: slice) -> None:
        scratch = np.empty((step, weight.inputs, TILE_OUTPUTS), np.float32)
        for first in range(share.start, share.stop, step):
            some = slice(first, min(first + step, share.stop))
            codes = tiles[some]
            wide = scratch[: len(codes)]
            _widen(codes, wide)
            for part in rows:
                multiply(x[part], wide, weight, some, by_tile[some, part])

    if workers is None:
        compute(slice(0, len(tiles)))
    else:  # expanding a code takes about as long as reading a float32
        workers.split(Work(len(tiles), len(x) * tiles.size, 2 * tiles.size * 4), compute)
    flat = y.reshape(len(x), len(tiles) * TILE_OUTPUTS)[:, : weight.outputs]
    if bias is not None:
        flat += bias
    return flat


def _widen(codes: Array, out: Array) -> None:
    """Write codes as float32 into ``out``."""
    if codes.dtype == np.int8:
        np.copyto(out, codes)
        return
    bits = out.view(np.uint32)
    np.copyto(bits, codes)
    np.left_shift(bits, 16, out=bits)


def _multiply_sums(x: Array, codes: Array, weight: CompactMatrix, tiles: slice, out: Array) -> None:
    """Write ``x W^T`` of some tiles into ``out`` ``[T, N, 32]``; each group's sum is scaled.

    Args:
        x: ``[N, in]``.
        codes: ``[T, in, 32]`` float32.
        weight, tiles: the matrix, and these tiles of it.
        out: result.
    """
    scales = weight.scales.tiles[tiles]
    groups = scales.shape[1]
    if groups == 1:
        np.matmul(x, codes, out=out)
        out *= scales
        by_group = x[None]
    else:
        by_group = np.ascontiguousarray(x.reshape(len(x), groups, -1).swapaxes(0, 1))
        sums = np.matmul(by_group, codes.reshape(len(codes), groups, -1, TILE_OUTPUTS))
        sums *= scales[:, :, None]
        np.add.reduce(sums, axis=1, out=out)
    if weight.minima is not None:
        out += np.matmul(by_group.sum(axis=2).T, weight.minima.tiles[tiles])


def _multiply_weights(x: Array, codes: Array, weight: CompactMatrix, tiles: slice, out: Array) -> None:
    """Write ``x W^T`` of some tiles into ``out``; the codes become weights in place."""
    scales = weight.scales.tiles[tiles]
    runs = codes.reshape(*scales.shape[:2], -1, TILE_OUTPUTS)
    runs *= scales[:, :, None]
    if weight.minima is not None:
        runs += weight.minima.tiles[tiles][:, :, None]
    np.matmul(x, codes, out=out)
