"""GEMMs with tiled weights on any GPU from sm_80 on: :class:`.linear.Linear` with kernels on mma.sync.

Checks, buffers and the cache of launches are Hopper's; only the launch differs.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from wisp_plan.memory.buffers.gemm import BLOCK_M
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.launch import Launch
from wisp_runtime.ops.cuda.gemm.linear import Linear, Matrix
from wisp_runtime.ops.cuda.gemm.tiling import GemmShape
from wisp_runtime.ops.cuda.gemm.token_codes import Codes

BLOCK_N = (8, 16, 32, 64, 128)
"""Tokens of a tile: each has its entries in ``linear*.cu``."""

_THREADS = constants()["mma_gemm_threads"]
_STEP_BYTES = 128  # part of a row, along K
_MIN_STEPS = 4  # length of a split of K: shorter ones spend their time on starting and combining


@dataclass(frozen=True, slots=True)
class PortablePlan:
    """Tiling of a GEMM with split-K.

    Attributes:
        block_n: tokens of a tile, whose rows are 128.
        grid: n-tiles, m-tiles, splits of K.
        shared_bytes: shared memory of a block.
    """

    block_n: int
    grid: tuple[int, int, int]
    shared_bytes: int


def plan_portable(shape: GemmShape, sm_count: int) -> PortablePlan:
    """Choose the tile, and split K where the tiles would leave some of ``sm_count`` SMs idle."""
    width = next((width for width in BLOCK_N if width >= shape.tokens), BLOCK_N[-1])
    stages = 4 if width <= 64 else 3  # linear_mma.cuh's kStages
    # There are two partial tiles an SM, which may be 96 tokens wide where a tile has 128.
    blocks = sm_count * (2 if width <= 64 else 1)
    n_tiles, m_tiles = -(-shape.tokens // width), -(-shape.rows // BLOCK_M)
    max_splits = 16 if width <= 32 else 8  # the last block of a tile reads the partial sums of all
    splits = min(blocks // (n_tiles * m_tiles), shape.k_tiles // _MIN_STEPS, max_splits)
    shared_bytes = stages * (BLOCK_M + width) * _STEP_BYTES
    return PortablePlan(width, (n_tiles, m_tiles, max(1, splits)), shared_bytes)


class _Arguments(ctypes.Structure):
    """``GemmArgs`` of ``linear_mma.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "out", "partials", "arrivals")),
        ("x_stride", ctypes.c_longlong),
        *((name, ctypes.c_int32) for name in ("rows", "inputs", "tokens")),
    )


class PortableLinear(Linear):
    """Multiply activations by tiled weights; memory behind the last row of activations is not read.

    Args:
        device: the GPU.
    """

    fuses_rope = False

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
        del codes  # there are none: E4M3 activations are Hopper's
        chosen = plan_portable(GemmShape(weight.outputs, weight.inputs, len(x)), self._device.sm_count)
        n_tiles, m_tiles, splits = chosen.grid
        needed = n_tiles * m_tiles * splits * BLOCK_M * chosen.block_n
        assert splits == 1 or needed <= partials.size
        return Launch(
            kernel=self._device.kernels.get(op, f"{op}_mma_n{chosen.block_n}"),
            grid=chosen.grid,
            threads=_THREADS,
            shared_bytes=chosen.shared_bytes,
            cluster=1,
            tokens=np.uint64(x.data.ptr),
            arguments=_Arguments(
                *(0, 0, out.data.ptr, partials.data.ptr, arrivals.data.ptr),
                x.strides[0] // BF16.itemsize,
                *(weight.outputs, weight.inputs, len(x)),
            ),
        )
