"""Both GEMMs of experts that have few tokens each, by one launch of Hopper's kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_plan.quantization.packed_format import PackedFormat
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device import context_prefetch
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.gemm.linear import Matrix
from wisp_runtime.ops.cuda.gemm.portable_plan import QuantizedArguments, quantized_arguments
from wisp_runtime.ops.cuda.moe.arguments import PLAIN_STORE, STORES, StreamArguments, StreamGemm
from wisp_runtime.ops.cuda.moe.matrices import ExpertMatrices, kind_of
from wisp_runtime.ops.cuda.moe.plan import Tile
from wisp_runtime.ops.cuda.moe.sorting import SortedPairs
from wisp_runtime.ops.cuda.moe.stream_plan import (
    STREAM_ROWS,
    STREAM_THREADS,
    STREAM_TOKENS,
    max_stream_tokens,
    stream_entry,
    stream_tiling,
)
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage
from wisp_runtime.ops.protocol.moe import ExpertWeights

_OP = "stream_experts"
_UINT32 = np.dtype(np.uint32)


@dataclass(frozen=True, slots=True)
class _Launch:
    """Launch for all layers of a shape."""

    kernel: Kernel
    grid: tuple[int]
    shared_bytes: int
    arguments: StreamArguments


class StreamExperts:
    """Multiply tokens by both matrices of their experts; the results are those of the portable kernels.

    Blocks wait for each other, so all must be resident: a process that finds others beside it under MPS when
    it starts leaves the kernel out. Two such kernels at once could each hold a part of the GPU for good.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._device, self._workspace = device, device.workspace
        self._launches: dict[Any, _Launch] = {}
        self._is_alone = not context_prefetch.co_running_processes(device.index)

    def takes(self, into: ExpertMatrices, down: ExpertMatrices, tokens: int, tile: Tile) -> bool:
        """Return whether such experts have the kernel, and it is the faster one for ``tokens``, N."""
        packed = _packed(into.first)
        if not self._is_alone or tokens > max_stream_tokens(packed) or tile != Tile(STREAM_TOKENS):
            return False
        sizes = into.first.outputs, into.first.inputs, down.first.outputs, down.first.inputs
        is_alike = packed == _packed(down.first) and not any(size % STREAM_ROWS for size in sizes)
        return is_alike and self._device.kernels.has(_OP, _name(packed))

    def __call__(
        self,
        x: Array,
        into: ExpertMatrices,
        down: ExpertMatrices,
        experts: ExpertWeights,
        ordered: SortedPairs,
    ) -> Array:
        """Return the results of each position: ``[N K, D]`` bf16.

        Args:
            x: ``[N, D]`` bf16; rows may be apart by any multiple of 16 bytes.
            into, down: matrices of ``experts``, for which :meth:`takes` holds.
        """
        pairs, tiles = len(ordered.rows), len(ordered.tiles)
        key = x.strides[0], kind_of(into.first), kind_of(down.first), experts.activation, pairs, tiles
        launch = self._launches.get(key)
        if launch is None:
            made = self._launch(x, into, down, STORES[experts.activation], ordered)
            launch = remember(self._launches, key, made)
        inner = self._workspace.array("moe.inner", (pairs, down.first.inputs), BF16)
        y = self._workspace.array("moe.outputs", (pairs, down.first.outputs), BF16)
        arguments = launch.arguments
        _point(arguments.gemms[0], x, ordered.rows, into, experts.gate_up_bias, inner)
        _point(arguments.gemms[1], inner, None, down, experts.down_bias, y)
        arguments.tiles, arguments.tile_count = ordered.tiles.data.ptr, ordered.tile_count.data.ptr
        arguments.progress = self._workspace.zeroed("moe.progress", (tiles,), _UINT32).data.ptr
        launch.kernel.launch(launch.grid, STREAM_THREADS, arguments, shared_bytes=launch.shared_bytes)
        return y

    def _launch(
        self, x: Array, into: ExpertMatrices, down: ExpertMatrices, store: int, ordered: SortedPairs
    ) -> _Launch:
        packed, pairs = _packed(into.first), len(ordered.rows)
        items, more = (len(ordered.tiles) * each.first.outputs // STREAM_ROWS for each in (into, down))
        tiling = stream_tiling(packed, items, self._device.sm_count, self._device.shared_bytes)
        kernel = self._device.kernels.get(_OP, stream_entry(packed), _name(packed))
        arguments = StreamArguments(stages=tiling.stages)
        arguments.gemms[0].matrix = _matrix(into, store, pairs, x.strides[0] // BF16.itemsize)
        arguments.gemms[1].matrix = _matrix(down, PLAIN_STORE, pairs, down.first.inputs)
        grid = min(items + more, self._device.sm_count * tiling.blocks)
        return _Launch(kernel, (grid,), tiling.shared_bytes, arguments)


def _packed(matrix: Matrix) -> PackedFormat | None:
    return matrix.packed if isinstance(matrix, QuantizedStorage) else None


def _name(packed: PackedFormat | None) -> str:
    return "bf16" if packed is None else packed.name


def _matrix(matrices: ExpertMatrices, store: int, pairs: int, stride: int) -> QuantizedArguments:
    first, packed = matrices.first, _packed(matrices.first)
    gemm = {"x_stride": stride, "rows": first.outputs, "inputs": first.inputs, "tokens": pairs}
    own = QuantizedArguments(**gemm) if packed is None else quantized_arguments(packed, "linear", **gemm)
    own.store = store
    return own


def _point(
    gemm: StreamGemm, x: Array, rows: Array | None, matrices: ExpertMatrices, bias: Array | None, out: Array
) -> None:
    gemm.x, gemm.rows = x.data.ptr, None if rows is None else rows.data.ptr
    gemm.matrix_bytes = matrices.distance_bytes
    gemm.matrix.weight, gemm.matrix.out = matrices.first.storage.data.ptr, out.data.ptr
    gemm.matrix.bias = None if bias is None else bias.data.ptr
