"""Products with packed weights on the GPU: plain, with SwiGLU, of rows that turn, or float32 logits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np

from wisp_plan.memory.buffers import gemm as buffers
from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_aligned, require_true
from wisp_runtime.ops.cuda.device.device import Device, tensor_map_2d
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.gemm.linear_cost import NARROW
from wisp_runtime.ops.cuda.gemm.linear_heads import HeadArguments
from wisp_runtime.ops.cuda.gemm.linear_plan import (
    MULTICAST_TOKENS,
    STEP_COLUMNS,
    Plan,
    Work,
    plan,
    stage_bytes,
    stages,
    staging_bytes,
)
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix

_FLOAT32 = np.dtype(np.float32)
_WARPGROUP, _NARROW_LOADERS = 128, 64  # threads: linear.cuh's kLinearThreads


class _Arguments(ctypes.Structure):
    """``GemmArgs`` of ``tile_scheduler.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "out", "parts", "arrivals")),
        *((name, ctypes.c_int32) for name in ("rows", "k_tiles", "tokens", "out_columns", "units")),
        *((name, ctypes.c_int32) for name in ("token_tiles", "group", "whole", "lanes", "ranges")),
        *((name, ctypes.c_int32) for name in ("pairs", "stages", "is_read_once", "shares_tokens")),
    )


@dataclass(frozen=True, slots=True)
class Launch:
    """For all matrices of a shape: a launch puts their pointers into ``arguments``, which are copied."""

    kernel: Kernel
    grid: tuple[int, ...]
    threads: int
    shared_bytes: int
    cluster: int
    tokens: Any  # tensor map of x, or its address
    arguments: Any  # a structure with a weight and a bias


class Linear:
    """Multiply activations by packed weights, with Hopper's kernels.

    Attributes:
        rotates: whether there is :meth:`rotary`.

    Args:
        device: where.
        planner: chooses how a product is cut, given the work and the number of multiprocessors.
        shared_bytes: that a thread block may have; with less than half of a multiprocessor's, the blocks of
            two products of up to 64 tokens run there side by side. None means all.
    """

    rotates = True

    def __init__(
        self, device: Device, planner: Callable[[Work, int], Plan] = plan, shared_bytes: int | None = None
    ) -> None:
        self._device, self._workspace, self._planner = device, device.workspace, planner
        self._shared_bytes = shared_bytes or device.shared_bytes
        self._launches: dict[Any, Launch] = {}
        self._heads = HeadArguments()
        self._maps: dict[Any, Any] = {}
        self._checked: dict[Any, bool] = {}
        self._max_tokens = 0
        self._partials, self._arrivals = buffers.split_k(1, device.sms)

    def reserve(self, max_tokens: int) -> None:
        """Allocate the buffers of split-K tiles for GEMMs of up to ``max_tokens`` tokens."""
        self._max_tokens = max(self._max_tokens, buffers.block_n(max_tokens))
        self._partials, self._arrivals = buffers.split_k(self._max_tokens, self._device.sms)
        self._workspace.reserve((self._partials, self._arrivals))

    def __call__(self, x: Array, weight: PackedMatrix, bias: Array | None = None, *, out_name: str) -> Array:
        """Return ``x W^T + bias``, summed in float32 and rounded once.

        Args:
            x: ``[N, in]`` bf16; rows may be apart by any multiple of 16 bytes. What lies behind the last row
                is read, and may be NaN.
            weight: ``[out, in]``, plain or interleaved for RoPE; the result's columns are permuted alike.
            bias: ``[out]`` bf16, or None.
            out_name: of the workspace's buffer that the result lies in.

        Returns:
            ``[N, out]`` bf16.

        Raises:
            ShapeError: an array differs from the above.
        """
        return self._multiply("linear", x, weight, bias, weight.outputs, BF16, out_name)

    def swiglu(self, x: Array, weight: PackedMatrix, bias: Array | None = None, *, out_name: str) -> Array:
        """Return ``silu(gate) * up`` of ``x W^T + bias``, in float32 and rounded once: ``[N, F]`` bf16.

        Args:
            x: as in :meth:`__call__`.
            weight: ``[2 F, in]``, gate and up interleaved.
            bias: ``[2 F]`` bf16, permuted alike, or None.
            out_name: of the workspace's buffer that the result lies in.

        Raises:
            ShapeError: an array differs from the above.
        """
        return self._multiply("linear_swiglu", x, weight, bias, weight.outputs // 2, BF16, out_name)

    def logits(self, x: Array, weight: PackedMatrix, *, out_name: str) -> Array:
        """Return ``x W^T`` as it was summed, ``[N, out]`` float32; arguments as in :meth:`__call__`.

        Raises:
            ShapeError: an array differs from them.
        """
        return self._multiply("linear_logits", x, weight, None, weight.outputs, _FLOAT32, out_name)

    def rotary(
        self,
        x: Array,
        weight: PackedMatrix,
        bias: Array | None,
        heads: tuple[int, int, int],
        cosines: Array,
        sines: Array,
        positions: Array,
        slots: Array,
        keys: Array,
        values: Array,
        *,
        out_name: str,
    ) -> Array:
        """Multiply, turn q and k by their positions, and write k and v to one layer's cache.

        Args:
            x: as in :meth:`__call__`.
            weight: ``[(Hq + 2 Hkv) Dh, in]``, ``rope_interleaved_<Dh>``; heads of 64 are plain.
            bias: ``[(Hq + 2 Hkv) Dh]`` bf16, permuted alike, or None.
            heads: ``(Hq, Hkv, Dh)``; Dh 64, 128, 192 or 256.
            cosines, sines: ``[S, Dh / 2]`` float32: all of a head turns.
            positions, slots, keys, values: as in :meth:`.rope.Rope.__call__`.
            out_name: of the workspace's buffer that the result lies in.

        Returns:
            The turned queries ``[N, Hq, Dh]`` bf16, in rows of ``(Hq + 2 Hkv) Dh``; what lies behind them in
            a row is not said.

        Raises:
            ShapeError: an array differs from the above.
        """
        more = self._heads.of(len(x), weight, heads, cosines, sines, positions, slots, keys, values)
        out = self._multiply("linear_rotary", x, weight, bias, weight.outputs, BF16, out_name, more)
        queries, _, size = heads
        strides = out.strides[0], size * BF16.itemsize, BF16.itemsize
        return cp.ndarray((len(x), queries, size), BF16, memptr=out.data, strides=strides)

    def _multiply(
        self,
        op: str,
        x: Array,
        weight: PackedMatrix,
        bias: Array | None,
        columns: int,
        dtype: Any,
        out_name: str,
        *more: Any,
    ) -> Array:
        out = self._workspace.array(out_name, (len(x), columns), dtype)
        if min(len(x), buffers.BLOCK_N[-1]) > self._max_tokens:
            self.reserve(len(x))
        parts, arrivals = self._workspace.view(self._partials), self._workspace.view(self._arrivals)
        source, storage = x.data, weight.storage.data.ptr
        added = 0 if bias is None else bias.data.ptr
        matrix = op, storage, added, weight.outputs, weight.inputs, weight.permutation
        if matrix not in self._checked:
            _check_weight(op, weight, bias)
            remember(self._checked, matrix, True)
        sizes = x.shape, x.strides, source.mem.size, weight.outputs, weight.inputs
        key = op, source.ptr, out.data.ptr, parts.data.ptr, sizes
        launch = self._launches.get(key)
        if launch is None:
            _check_tokens(op, x, weight)
            if len(x) == 0:
                return out
            launch = remember(self._launches, key, self._launch(op, x, weight, out, parts, arrivals))
        launch.arguments.weight, launch.arguments.bias = storage, added
        launch.kernel.launch(
            launch.grid,
            launch.threads,
            launch.tokens,
            launch.arguments,
            *more,
            shared_bytes=launch.shared_bytes,
            cluster=launch.cluster,
        )
        return out

    def _launch(
        self, op: str, x: Array, weight: PackedMatrix, out: Array, parts: Array, arrivals: Array
    ) -> Launch:
        chosen = self._planner(Work(weight.outputs, weight.inputs, len(x)), self._device.sms)
        assert not chosen.is_cut or chosen.grid * 2 * buffers.BLOCK_M * chosen.tile_tokens <= parts.size
        tile = width, height = chosen.tile_tokens, chosen.row_tiles
        ring = stages(width, self._shared_bytes, height)
        enough = 1 if width <= NARROW and height == 2 else 2  # a stage goes back when the next one is there
        require_true(
            ring >= enough, f"{op}: {self._shared_bytes} B of shared memory are too few for {chosen}"
        )
        assert not chosen.shares_tokens or _can_share(chosen)
        arguments = _Arguments(
            *(0, 0, out.data.ptr, parts.data.ptr, arrivals.data.ptr),
            *(weight.outputs, weight.k_tiles, len(x), out.shape[1], chosen.units),
            *(chosen.token_tiles, chosen.group, chosen.whole, chosen.lanes, chosen.ranges),
            *(chosen.pairs, ring, chosen.token_tiles == 1, chosen.shares_tokens),
        )
        return Launch(
            kernel=self._device.kernels.get(op, f"{op}_n{width}" if height == 2 else f"{op}_tall_n{width}"),
            grid=(chosen.grid,),
            threads=height * _WARPGROUP
            + (_NARROW_LOADERS if width <= NARROW and height == 2 else _WARPGROUP),
            shared_bytes=ring * stage_bytes(*tile) + staging_bytes(*tile),
            cluster=2 if chosen.pairs or chosen.shares_tokens else 1,
            tokens=self._map(x, width // 2 if chosen.shares_tokens else width),
            arguments=arguments,
        )

    def _map(self, x: Array, width: int) -> Any:
        """Describe ``x`` with as many rows as its memory has: one map for any number of tokens.

        A box beyond a map's edge is slow, and making a map takes longer than a launch.
        """
        memory, stride = x.data.mem, x.strides[0]
        room_bytes = memory.ptr + memory.size - x.data.ptr - x.shape[1] * BF16.itemsize
        shape = (1 + room_bytes // stride, x.shape[1])
        key = x.data.ptr, shape, stride, width
        found = self._maps.get(key)
        if found is None:
            rows = cp.ndarray(shape, BF16, x.data, x.strides)
            found = remember(self._maps, key, tensor_map_2d(rows, width, STEP_COLUMNS))
        return found


def _check_tokens(op: str, x: Array, weight: PackedMatrix) -> None:
    if x.ndim != 2 or x.shape[1] != weight.inputs or x.dtype != BF16:
        raise ShapeError(f"{op}: x is {list(x.shape)} {x.dtype}, must be [N, {weight.inputs}] {BF16}")
    row_bytes = weight.inputs * BF16.itemsize
    is_apart = x.strides[0] % 16 == 0 and x.strides[0] >= row_bytes and x.strides[1] == BF16.itemsize
    require_true(
        is_apart, f"{op}: x has strides {x.strides}, must have dense rows a multiple of 16 bytes apart"
    )
    require_aligned(op, "x", x)


def _check_weight(op: str, weight: PackedMatrix, bias: Array | None) -> None:
    require_true(
        weight.inputs % 8 == 0, f"{op}: the matrix has {weight.inputs} columns, must be a multiple of 8"
    )
    require_aligned(op, "the packed matrix", weight.storage)
    if op in ("linear_swiglu", "linear_logits"):
        permutation = "gate_up_interleaved" if op == "linear_swiglu" else "plain"
        told = f"{op}: the matrix's rows are {weight.permutation}, must be {permutation}"
        require_true(weight.permutation == permutation, told)
    elif op == "linear":
        told = f"{op}: the matrix's rows are gate_up_interleaved, must not be"
        require_true(weight.permutation != "gate_up_interleaved", told)
    if weight.permutation == "gate_up_interleaved":
        fits = weight.outputs % 16 == 0
        require_true(fits, f"{op}: {weight.outputs} rows of gate and up, must be a multiple of 16")
    if bias is not None:
        require(op, "bias", bias, (weight.outputs,), BF16)


def _can_share(plan: Plan) -> bool:
    """Whether blocks 2 i and 2 i + 1 take as many steps: else one waits for the other for ever."""
    is_whole = plan.whole == plan.tiles and plan.pairs == 0 and plan.row_tiles == 2
    return is_whole and plan.tile_tokens == MULTICAST_TOKENS and plan.units % 2 == plan.grid % 2 == 0
