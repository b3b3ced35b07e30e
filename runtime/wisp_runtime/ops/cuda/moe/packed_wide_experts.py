"""GEMMs of experts in block FP8 that have many tokens each, with Hopper's kernel."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_plan.quantization.packed_format import PACKED_FORMATS, TILE_ROWS
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.checks import remember
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.gemm.token_maps import TokenMaps
from wisp_runtime.ops.cuda.moe.matrices import ExpertMatrices
from wisp_runtime.ops.cuda.moe.plan import PACKED_WIDE_TOKENS, packed_wide_entry
from wisp_runtime.ops.cuda.moe.sorting import SortedPairs

FORMAT = "fp8_block"
"""The format that the kernel reads."""

_THREADS = 384
_PACKED = PACKED_FORMATS[FORMAT]
_BOX_TOKENS = 64  # of the tensor map
_ROW_TILES, _TOKEN_STAGES, _WEIGHT_STAGES = 2, (3, 4), 4  # the middle one plain, gated
_SLOT_BYTES = _PACKED.tile_bytes + 128  # of a row tile in a stage of weights
_QUEUE_BYTES, _BARRIER_BYTES = 32, 16  # a tile given out; the two barriers of a stage
_UINT32 = np.dtype(np.uint32)


class WideArguments(ctypes.Structure):
    """``ExpertArgs`` of ``tile_queue.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "out", "tiles", "tile_count", "next")),
        *((name, ctypes.c_longlong) for name in ("matrix_bytes", "block_scales", "row_scales")),
        *((name, ctypes.c_int32) for name in ("rows", "row_blocks", "column_tiles", "out_columns")),
    )


@dataclass(frozen=True, slots=True)
class _Launch:
    """Launch for all layers of a shape."""

    kernel: Kernel
    grid: tuple[int]
    shared_bytes: int
    arguments: WideArguments


class PackedWideExperts:
    """Multiply positions, a row each, by their experts' matrices in block FP8.

    Args:
        device: the GPU, a Hopper where anything is multiplied.
    """

    def __init__(self, device: Gpu) -> None:
        self._device, self._map = device, TokenMaps()
        self._launches: dict[Any, _Launch] = {}

    def __call__(
        self, x: Array, matrices: ExpertMatrices, bias: Array | None, ordered: SortedPairs, out: Array
    ) -> Array:
        """Return ``out`` with the results of each position, activated where gate and up are interleaved.

        Args:
            x: ``[positions, in]`` bf16, contiguous.
            bias: ``[E, out]`` bf16 in the order of the matrices' rows, or None.
            ordered: the pairs, sorted into tiles of ``PACKED_WIDE_TOKENS``.
            out: ``[positions, out]`` bf16, or half as wide.
        """
        first = matrices.first
        key = first.outputs, first.inputs, first.permutation, matrices.distance_bytes, len(ordered.tiles)
        launch = self._launches.get(key)
        if launch is None:
            launch = remember(self._launches, key, self._launch(matrices, ordered))
        arguments = launch.arguments
        arguments.weight, arguments.out = first.storage.data.ptr, out.data.ptr
        arguments.bias = None if bias is None else bias.data.ptr
        arguments.tiles, arguments.tile_count = ordered.tiles.data.ptr, ordered.tile_count.data.ptr
        arguments.next = self._device.workspace.zeroed("moe.progress", (1,), _UINT32).data.ptr
        launch.kernel.launch(
            launch.grid, _THREADS, self._map(x, _BOX_TOKENS), arguments, shared_bytes=launch.shared_bytes
        )
        return out

    def _launch(self, matrices: ExpertMatrices, ordered: SortedPairs) -> _Launch:
        first, is_gated = matrices.first, matrices.first.permutation == "gate_up_interleaved"
        block_scales, row_scales, _ = _PACKED.sections(first.outputs, first.inputs)
        arguments = WideArguments(
            matrix_bytes=matrices.distance_bytes,
            block_scales=block_scales,
            row_scales=row_scales,
            rows=first.outputs,
            row_blocks=-(-first.outputs // (TILE_ROWS * _ROW_TILES)),
            column_tiles=-(-first.inputs // _PACKED.tile_columns),
            out_columns=first.outputs // 2 if is_gated else first.outputs,
        )
        return _Launch(
            self._device.kernels.get("experts", packed_wide_entry(is_gated=is_gated), FORMAT),
            (min(self._device.sm_count, arguments.row_blocks * len(ordered.tiles)),),
            _shared_bytes(is_gated=is_gated),
            arguments,
        )


def _shared_bytes(*, is_gated: bool) -> int:
    """Return the shared memory of a block: stages, results, barriers and the tile given out."""
    token_stages, columns = _TOKEN_STAGES[is_gated], TILE_ROWS // (2 if is_gated else 1)
    stages = token_stages * PACKED_WIDE_TOKENS * 128 + _WEIGHT_STAGES * _ROW_TILES * _SLOT_BYTES
    results = _ROW_TILES * PACKED_WIDE_TOKENS * columns * 2
    return stages + results + (token_stages + _WEIGHT_STAGES + 1) * _BARRIER_BYTES + _QUEUE_BYTES
