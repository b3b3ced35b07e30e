"""GEMMs with tiled weights on the GPU: plain, with SwiGLU, with RoPE and the KV write, or float32 logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy as cp
import numpy as np

from wisp_plan.memory.buffers import gemm as buffers
from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.gemm.checks import check_tokens, check_weight
from wisp_runtime.ops.cuda.gemm.cost_model import SMALL_N
from wisp_runtime.ops.cuda.gemm.launch import GemmArguments, Launch
from wisp_runtime.ops.cuda.gemm.planner import plan
from wisp_runtime.ops.cuda.gemm.quantized_launch import QuantizedPlanner, quantized_launch
from wisp_runtime.ops.cuda.gemm.quantized_tiling import MIN_W8A8_TOKENS, plan_quantized
from wisp_runtime.ops.cuda.gemm.rotary_arguments import RotaryArguments
from wisp_runtime.ops.cuda.gemm.tiling import (
    MULTICAST_TOKENS,
    GemmPlan,
    GemmShape,
    stage_bytes,
    stages,
    staging_bytes,
)
from wisp_runtime.ops.cuda.gemm.token_codes import Codes, TokenCodes
from wisp_runtime.ops.cuda.gemm.token_maps import TokenMaps
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage

Matrix = PackedMatrix | QuantizedStorage
_FLOAT32 = np.dtype(np.float32)
_WARPGROUP, _SMALL_N_PRODUCERS = 128, 64  # threads: linear.cuh's kLinearThreads


class Linear:
    """Multiply activations by tiled weights, bf16 or quantized, with Hopper's kernels.

    Attributes:
        fuses_rope: whether there is :meth:`rotary`.

    Args:
        device: the GPU.
        planner: choice of a tiling, given the GEMM's shape and the number of SMs.
        shared_bytes: shared memory that a thread block may have; with less than half of an SM's, the blocks
            of two small-N GEMMs run there side by side. None means all.
        quantized_planner: choice of a tiling where weights are quantized.
        rounds_tokens: whether many activations are rounded to E4M3 where the weights are E4M3.
    """

    fuses_rope = True

    def __init__(
        self,
        device: Gpu,
        planner: Callable[[GemmShape, int], GemmPlan] = plan,
        shared_bytes: int | None = None,
        quantized_planner: QuantizedPlanner = plan_quantized,
        rounds_tokens: bool = True,
    ) -> None:
        self._device, self._workspace, self._planner = device, device.workspace, planner
        self._quantized_planner = quantized_planner
        self._token_codes, self._rounds_tokens = TokenCodes(device), rounds_tokens
        self._shared_bytes = shared_bytes or device.shared_bytes
        self._launches: dict[Any, Launch] = {}
        self._rotary = RotaryArguments()
        self._map = TokenMaps()
        self._checked: dict[Any, bool] = {}
        self._max_tokens = 0
        self._partials, self._arrivals = buffers.split_k(1, device.sm_count)

    def reserve(self, max_tokens: int, max_code_columns: int = 0) -> None:
        """Allocate the buffers of GEMMs of up to ``max_tokens`` tokens.

        Args:
            max_tokens: tokens of a step.
            max_code_columns: inputs of the widest matrix of E4M3 whose activations may be E4M3 too; 0: of
                none.
        """
        if max_code_columns:
            self._token_codes.reserve(max_tokens, max_code_columns)
        self._max_tokens = max(self._max_tokens, buffers.block_n(max_tokens))
        self._partials, self._arrivals = buffers.split_k(self._max_tokens, self._device.sm_count)
        self._workspace.reserve((self._partials, self._arrivals))

    def __call__(self, x: Array, weight: Matrix, bias: Array | None = None, *, out_name: str) -> Array:
        """Return ``x W^T + bias``, summed in float32 and rounded once.

        Args:
            x: ``[N, in]`` bf16; rows may be apart by any multiple of 16 bytes. Memory behind the last row is
                read, and may be NaN.
            weight: ``[out, in]``, plain or interleaved for RoPE; the result's columns are permuted alike.
            bias: ``[out]`` bf16, or None.
            out_name: buffer of the workspace that takes the result.

        Returns:
            ``[N, out]`` bf16.

        Raises:
            ShapeError: an array differs from the above.
        """
        if weight.permutation == "gate_up_interleaved":
            raise ShapeError("linear: the matrix's rows are gate_up_interleaved, must not be")
        return self._multiply("linear", x, weight, bias, weight.outputs, BF16, out_name)

    def gate_up(self, x: Array, weight: Matrix, bias: Array | None = None, *, out_name: str) -> Array:
        """Return ``x W^T + bias`` of gate and up, whose columns stay interleaved; see :meth:`swiglu`.

        Raises:
            ShapeError: an array differs from that, or the rows are not interleaved.
        """
        if weight.permutation != "gate_up_interleaved":
            raise ShapeError(f"gate_up: the matrix's rows are {weight.permutation}, must be interleaved")
        return self._multiply("linear", x, weight, bias, weight.outputs, BF16, out_name)

    def swiglu(self, x: Array, weight: Matrix, bias: Array | None = None, *, out_name: str) -> Array:
        """Return ``silu(gate) * up`` of ``x W^T + bias``, in float32 and rounded once: ``[N, F]`` bf16.

        Args:
            x: input, see :meth:`__call__`.
            weight: ``[2 F, in]``, gate and up interleaved.
            bias: ``[2 F]`` bf16, permuted alike, or None.
            out_name: buffer of the workspace that takes the result.

        Raises:
            ShapeError: an array differs from the above.
        """
        return self._multiply("linear_swiglu", x, weight, bias, weight.outputs // 2, BF16, out_name)

    def logits(self, x: Array, weight: Matrix, *, out_name: str) -> Array:
        """Return ``x W^T`` as it was summed, ``[N, out]`` float32; arguments as in :meth:`__call__`.

        Raises:
            ShapeError: an array differs from them.
        """
        return self._multiply("linear_logits", x, weight, None, weight.outputs, _FLOAT32, out_name)

    def rotary(
        self,
        x: Array,
        weight: Matrix,
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
        """Multiply, apply RoPE to q and k, and write k and v to one layer's cache.

        Args:
            x: input, see :meth:`__call__`.
            weight: ``[(Hq + 2 Hkv) Dh, in]``, ``rope_interleaved_<Dh>``; heads of 64 are plain.
            bias: ``[(Hq + 2 Hkv) Dh]`` bf16, permuted alike, or None.
            heads: ``(Hq, Hkv, Dh)``; Dh 64, 128, 192 or 256.
            cosines, sines: ``[S, Dh / 2]`` float32: all channels of a head rotate.
            positions, slots, keys, values: arguments of :meth:`.rope.Rope.__call__`.
            out_name: buffer of the workspace that takes the result.

        Returns:
            The rotated queries ``[N, Hq, Dh]`` bf16, in rows of ``(Hq + 2 Hkv) Dh``; the rest of a row is
            undefined.

        Raises:
            ShapeError: an array differs from the above.
        """
        rotary = self._rotary.of(len(x), weight, heads, cosines, sines, positions, slots, keys, values)
        out = self._multiply("linear_rotary", x, weight, bias, weight.outputs, BF16, out_name, rotary)
        queries, _, size = heads
        strides = out.strides[0], size * BF16.itemsize, BF16.itemsize
        return cp.ndarray((len(x), queries, size), BF16, memptr=out.data, strides=strides)

    def _multiply(
        self,
        op: str,
        x: Array,
        weight: Matrix,
        bias: Array | None,
        columns: int,
        dtype: Any,
        out_name: str,
        *more: Any,
    ) -> Array:
        out = self._workspace.array(out_name, (len(x), columns), dtype)
        if min(len(x), buffers.BLOCK_N[-1]) > self._max_tokens:
            self.reserve(len(x))
        partials, arrivals = self._workspace.view(self._partials), self._workspace.view(self._arrivals)
        codes = self._codes(op, x, weight)
        source, storage = x.data, weight.storage.data.ptr
        added = 0 if bias is None else bias.data.ptr
        matrix = op, storage, added, weight.outputs, weight.inputs, weight.permutation
        if matrix not in self._checked:
            check_weight(op, weight, bias)
            remember(self._checked, matrix, True)
        packed = weight.packed.name if isinstance(weight, QuantizedStorage) else ""
        coded = (0, 0) if codes is None else (codes.codes.data.ptr, codes.scales.data.ptr)
        sizes = x.shape, x.strides, source.mem.size, weight.outputs, weight.inputs, packed, coded
        key = op, source.ptr, out.data.ptr, partials.data.ptr, sizes
        launch = self._launches.get(key)
        if launch is None:
            check_tokens(op, x, weight)
            if len(x) == 0:
                return out
            launch = remember(
                self._launches, key, self._launch(op, x, weight, out, partials, arrivals, codes)
            )
        launch.arguments.weight, launch.arguments.bias = storage, added
        if launch.quantized is not None:
            launch.quantized.point_to(storage)
            more = launch.quantized, *more
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

    def _codes(self, op: str, x: Array, weight: Matrix) -> Codes | None:
        """Return ``x`` in E4M3 where that is faster, and there is memory for it.

        Never for logits: their tokens are sequences, whose number would round the logits of each.
        """
        codes = self._token_codes
        if not (self._rounds_tokens and isinstance(weight, QuantizedStorage)):
            return None
        if weight.packed.numbers != "e4m3" or op == "linear_logits":
            return None
        if len(x) < MIN_W8A8_TOKENS or len(x) > codes.max_tokens or weight.inputs > codes.max_columns:
            return None
        check_tokens(op, x, weight)
        return codes(x, in_groups=weight.packed.has_block_scales)

    def _launch(
        self,
        op: str,
        x: Array,
        weight: Matrix,
        out: Array,
        partials: Array,
        arrivals: Array,
        codes: Codes | None,
    ) -> Launch:
        if isinstance(weight, QuantizedStorage):
            arrays = out, partials, arrivals
            return quantized_launch(
                self._device, self._quantized_planner, op, x, weight, *arrays, self._map, codes
            )
        chosen = self._planner(GemmShape(weight.outputs, weight.inputs, len(x)), self._device.sm_count)
        assert chosen.partial_sums <= partials.size
        tile = width, row_tiles = chosen.block_n, chosen.row_tiles
        depth, is_small = stages(width, self._shared_bytes, row_tiles), width <= SMALL_N and row_tiles == 2
        enough = 1 if is_small else 2  # a stage is released when the next one is there
        require_true(
            depth >= enough, f"{op}: {self._shared_bytes} B of shared memory are too few for {chosen}"
        )
        assert not chosen.shares_tokens or _can_multicast(chosen)
        arguments = GemmArguments(
            *(0, 0, out.data.ptr, partials.data.ptr, arrivals.data.ptr),
            *(weight.outputs, weight.k_tiles, len(x), out.shape[1], chosen.m_tiles),
            *(chosen.n_tiles, chosen.group, chosen.full_tiles, chosen.streams, chosen.ranges),
            *(chosen.pairs, depth, chosen.n_tiles == 1, chosen.shares_tokens),
        )
        return Launch(
            kernel=self._device.kernels.get(
                op, f"{op}_n{width}" if row_tiles == 2 else f"{op}_tall_n{width}"
            ),
            grid=(chosen.grid,),
            threads=row_tiles * _WARPGROUP + (_SMALL_N_PRODUCERS if is_small else _WARPGROUP),
            shared_bytes=depth * stage_bytes(*tile) + staging_bytes(*tile),
            cluster=2 if chosen.pairs or chosen.shares_tokens else 1,
            tokens=self._map(x, width // 2 if chosen.shares_tokens else width),
            arguments=arguments,
        )


def _can_multicast(plan: GemmPlan) -> bool:
    """Return whether blocks 2 i and 2 i + 1 take as many steps: else one waits for the other for ever."""
    is_full = plan.full_tiles == plan.tiles and plan.pairs == 0 and plan.row_tiles == 2
    return is_full and plan.block_n == MULTICAST_TOKENS and plan.m_tiles % 2 == plan.grid % 2 == 0
