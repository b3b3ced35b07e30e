"""GEMMs of experts that have many tokens each, with Hopper's kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.launch import GemmArguments
from wisp_runtime.ops.cuda.gemm.tiling import ROW_TILE, stage_bytes, stages, staging_bytes
from wisp_runtime.ops.cuda.gemm.token_maps import TokenMaps
from wisp_runtime.ops.cuda.moe.arguments import ExpertTiles
from wisp_runtime.ops.cuda.moe.matrices import ExpertMatrices
from wisp_runtime.ops.cuda.moe.packed_wide_experts import FORMAT, PackedWideExperts
from wisp_runtime.ops.cuda.moe.plan import WIDE_BARRIER_BYTES, WIDE_ROW_TILES, wide_entry
from wisp_runtime.ops.cuda.moe.sorting import SortedPairs
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage
from wisp_runtime.ops.protocol.moe import ExpertWeights

_ROW_THREADS = constants()["row_threads"]
_WARPGROUP = 128
_GATHERED_ROWS = 4  # of a block of gather_positions.cu
_RESULTS = "moe.outputs"  # nobody needs the tokens in their order when the results are written


def wide_format(experts: ExpertWeights) -> str | None:
    """Return the format of weights that Hopper's kernels multiply: bf16 or block FP8; None of others."""
    formats = {
        each[0].packed.name if isinstance(each[0], QuantizedStorage) else "bf16"
        for each in (experts.gate_up, experts.down)
    }
    return formats.pop() if formats in ({"bf16"}, {FORMAT}) and experts.activation == "silu" else None


@dataclass(frozen=True, slots=True)
class _Launch:
    """Launch for all layers of a shape."""

    kernel: Kernel
    grid: tuple[int]
    threads: int
    shared_bytes: int
    gemm: GemmArguments
    tiles: ExpertTiles


class WideExperts:
    """Multiply positions, a row each, by their experts' matrices.

    Args:
        device: the GPU, a Hopper where anything is multiplied.
    """

    def __init__(self, device: Gpu) -> None:
        self._device, self._workspace, self._map = device, device.workspace, TokenMaps()
        self._launches: dict[Any, _Launch] = {}
        self._packed = PackedWideExperts(device)

    def gather(self, x: Array, rows: Array) -> Array:
        """Return row ``rows[p]`` of ``x`` ``[N, D]`` bf16 for each position: ``[N K, D]``."""
        pairs, columns = len(rows), x.shape[1]
        out = self._workspace.array(_RESULTS, (pairs, columns), BF16)
        grid = -(-pairs // _GATHERED_ROWS), -(-columns // (8 * _ROW_THREADS))
        sizes = np.int64(x.strides[0] // BF16.itemsize), np.int32(columns), np.int32(pairs)
        kernel = self._device.kernels.get("gather_positions")
        kernel.launch(grid, _ROW_THREADS, np.uint64(x.data.ptr), rows, out, *sizes)
        return out

    def gated(self, x: Array, matrices: ExpertMatrices, bias: Array | None, ordered: SortedPairs) -> Array:
        """Return ``silu(gate) up`` of each position: ``[N K, F]`` bf16."""
        return self._multiply(x, matrices, bias, ordered, "moe.inner", is_gated=True)

    def down(self, x: Array, matrices: ExpertMatrices, bias: Array | None, ordered: SortedPairs) -> Array:
        """Return the results of each position: ``[N K, D]`` bf16."""
        return self._multiply(x, matrices, bias, ordered, _RESULTS, is_gated=False)

    def _multiply(
        self,
        x: Array,
        matrices: ExpertMatrices,
        bias: Array | None,
        ordered: SortedPairs,
        out_name: str,
        *,
        is_gated: bool,
    ) -> Array:
        first, tile = matrices.first, ordered.tile
        out = self._workspace.array(out_name, (len(x), first.outputs // (2 if is_gated else 1)), BF16)
        if isinstance(first, QuantizedStorage):
            return self._packed(x, matrices, bias, ordered, out)
        key = len(x), first.outputs, first.inputs, is_gated, tile, len(ordered.tiles)
        launch = self._launches.get(key)
        if launch is None:
            launch = remember(self._launches, key, self._launch(len(x), matrices, ordered, is_gated))
        gemm, tiles = launch.gemm, launch.tiles
        gemm.weight, gemm.out = first.storage.data.ptr, out.data.ptr
        gemm.bias = None if bias is None else bias.data.ptr
        tiles.tiles, tiles.tile_count = ordered.tiles.data.ptr, ordered.tile_count.data.ptr
        tiles.distance = matrices.distance_bytes // BF16.itemsize
        launch.kernel.launch(
            *(launch.grid, launch.threads, self._map(x, tile.width), gemm, tiles),
            shared_bytes=launch.shared_bytes,
        )
        return out

    def _launch(
        self, positions: int, matrices: ExpertMatrices, ordered: SortedPairs, is_gated: bool
    ) -> _Launch:
        first, width, row_tiles = matrices.first, ordered.tile.width, WIDE_ROW_TILES
        depth = stages(width, self._device.shared_bytes, row_tiles)
        m_tiles = -(-first.outputs // (ROW_TILE * row_tiles))
        return _Launch(
            kernel=self._device.kernels.get("experts", wide_entry(width, is_gated)),
            grid=(min(self._device.sm_count, m_tiles * len(ordered.tiles)),),
            threads=(row_tiles + 1) * _WARPGROUP,
            shared_bytes=depth * stage_bytes(width, row_tiles)
            + staging_bytes(width, row_tiles)
            + WIDE_BARRIER_BYTES,
            gemm=GemmArguments(
                rows=first.outputs,
                k_tiles=-(-first.inputs // ROW_TILE),
                tokens=positions,
                out_columns=first.outputs // 2 if is_gated else first.outputs,
                m_tiles=m_tiles,
                stages=depth,
            ),
            tiles=ExpertTiles(),
        )
