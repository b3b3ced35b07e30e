"""Launches of GEMMs with quantized weights: ``kernels/hopper/quantized``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from wisp_plan.quantization.packed_format import PackedFormat
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.checks import require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.gemm.launch import GemmArguments, Launch
from wisp_runtime.ops.cuda.gemm.quantized_tiling import Stages, plan_w8a8, stages
from wisp_runtime.ops.cuda.gemm.tiling import GemmPlan, GemmShape
from wisp_runtime.ops.cuda.gemm.token_codes import Codes
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage

QuantizedPlanner = Callable[[PackedFormat, GemmShape, int], GemmPlan]
_THREADS = 384  # linear_quantized.cuh's kQuantizedThreads


class QuantizedArguments(ctypes.Structure):
    """``QuantizedArgs`` of ``bf16_codecs.cuh``, for matrices of one shape and format."""

    sections: tuple[int, int, int]
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("row_scales", "block_scales", "token_scales")),
        *((name, ctypes.c_int32) for name in ("token_stride", "tile_bytes", "weight_stages")),
        *((name, ctypes.c_int32) for name in ("token_stages", "group_shift", "has_zero_points")),
    )

    @classmethod
    def of(cls, weight: QuantizedStorage, depth: Stages, codes: Codes | None) -> QuantizedArguments:
        """Return the arguments for matrices of the shape and format of ``weight``, and tokens' codes."""
        packed = weight.packed
        shift = {32: 0, 64: 1}.get(packed.group, 2)
        scales, stride = (0, 0) if codes is None else (codes.scales.data.ptr, codes.stride)
        stage_counts = depth.weights, depth.tokens
        arguments = cls(0, 0, scales, stride, packed.tile_bytes, *stage_counts, shift, packed.has_zero_points)
        arguments.sections = packed.sections(weight.outputs, weight.inputs)
        return arguments

    def point_to(self, address: int) -> None:
        """Take the scales of the matrix at ``address``."""
        block_scales, row_scales, _ = self.sections
        self.block_scales, self.row_scales = address + block_scales, address + row_scales


def quantized_launch(
    device: Gpu,
    planner: QuantizedPlanner,
    op: str,
    x: Array,
    weight: QuantizedStorage,
    out: Array,
    partials: Array,
    arrivals: Array,
    map_of: Callable[[Array, int], Any],
    codes: Codes | None,
) -> Launch:
    """Plan the launch of ``op`` for ``x`` and every matrix of this shape and format.

    Args:
        map_of: maker of the tensor map of x for tiles of so many tokens.
        codes: x in E4M3, which is multiplied then; or None.
    """
    packed = weight.packed
    shape = GemmShape(weight.outputs, weight.inputs, len(x), packed.tile_columns)
    chosen = (planner if codes is None else plan_w8a8)(packed, shape, device.sm_count)
    assert chosen.partial_sums <= partials.size
    depth = stages(packed, chosen.block_n, device.shared_bytes, codes is not None)
    name = f"n{chosen.block_n}" if codes is None else f"w8a8_n{chosen.block_n}"
    require_true(
        depth.weights > 1, f"{op}: {device.shared_bytes} B of shared memory are too few for {chosen}"
    )
    arguments = GemmArguments(
        *(0, 0, out.data.ptr, partials.data.ptr, arrivals.data.ptr),
        *(weight.outputs, shape.k_tiles, len(x), out.shape[1], chosen.m_tiles),
        *(chosen.n_tiles, chosen.group, chosen.full_tiles, chosen.streams, chosen.ranges),
        *(0, depth.weights, chosen.n_tiles == 1, 0),
    )
    return Launch(
        kernel=device.kernels.get(op, f"{op}_{name}", packed.name),
        grid=(chosen.grid,),
        threads=_THREADS,
        shared_bytes=depth.shared_bytes,
        cluster=1,
        tokens=map_of(x if codes is None else codes.codes, chosen.block_n),
        arguments=arguments,
        quantized=QuantizedArguments.of(weight, depth, codes),
    )
