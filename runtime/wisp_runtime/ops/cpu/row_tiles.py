"""GEMMs whose row of a result depends on that row alone, bit for bit: rows in tiles of eight.

BLAS sums in another order for another number of rows. Here it always gets eight, of which the last may be
padding. One row takes some 1.3 times as long as a GEMM of its own, many rows 1.2 times (two cores of a
Sapphire Rapids, 2,048 inputs).
"""

from __future__ import annotations

import numpy as np

from wisp_plan.quantization.compact_format import TILE_OUTPUTS
from wisp_runtime.batch import Array
from wisp_runtime.ops.cpu.compact import CompactMatrix, compact_linear
from wisp_runtime.ops.cpu.packed import PackedMatrix
from wisp_runtime.ops.cpu.threads import Work, Workers

ROW_TILE = 8


def linear_by_tiles(
    x: Array, weight: PackedMatrix | CompactMatrix, bias: Array | None, workers: Workers | None
) -> Array:
    """Multiply ``y = x W^T + bias`` as :func:`.reference.linear` does; ``[N, in]`` to ``[N, out]``."""
    tiled = _in_tiles(x)
    if isinstance(weight, CompactMatrix):
        y = compact_linear(tiled.reshape(-1, x.shape[1]), weight, workers=workers, row_tile=ROW_TILE)
    else:
        y = _packed(tiled, weight, workers)
    y = y[: len(x)]
    if bias is not None:
        y += bias
    return y


def multiply_by_tiles(x: Array, transposed: Array) -> Array:
    """Return ``x W`` of a small matrix ``[in, out]`` that is not packed."""
    return np.matmul(_in_tiles(x), transposed).reshape(-1, transposed.shape[1])[: len(x)]


def _in_tiles(x: Array) -> Array:
    """Return the rows as ``[T, 8, in]``, the last tile padded with zeros."""
    tiles = -(-len(x) // ROW_TILE)
    if len(x) % ROW_TILE:
        padded = np.zeros((tiles * ROW_TILE, x.shape[1]), np.float32)
        padded[: len(x)] = x
        x = padded
    return np.ascontiguousarray(x).reshape(tiles, ROW_TILE, x.shape[1])


def _packed(x: Array, weight: PackedMatrix, workers: Workers | None) -> Array:
    tiles = weight.tiles
    y = np.empty((*x.shape[:2], len(tiles), TILE_OUTPUTS), np.float32)
    by_tile = y.transpose(2, 0, 1, 3)

    def compute(share: slice) -> None:
        np.matmul(x, tiles[share, None], out=by_tile[share])

    if workers is None:
        compute(slice(0, len(tiles)))
    else:
        workers.split(Work(len(tiles), len(x) * ROW_TILE * tiles.size, tiles.nbytes), compute)
    return y.reshape(len(x) * ROW_TILE, len(tiles) * TILE_OUTPUTS)[:, : weight.outputs]
