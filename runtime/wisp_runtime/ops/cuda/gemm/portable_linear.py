"""Products with packed weights on any GPU from sm_80 on: :class:`.linear.Linear` with kernels on mma.sync.

Checks, buffers and what is kept of a launch are Hopper's; only the launch is another.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from wisp_plan.memory.buffers.gemm import BLOCK_M
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.linear import Launch, Linear
from wisp_runtime.ops.cuda.gemm.linear_plan import Work
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix

TILE_TOKENS = (8, 16, 32, 64, 128)
"""Tokens of a tile: each has its entries in ``linear*.cu``."""

_THREADS = constants()["mma_gemm_threads"]
_STEP_BYTES = 128  # of a row, along K
_LEAST_STEPS = 4  # of a part of K: shorter ones spend their time on starting and joining


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is cut.

    Attributes:
        tile_tokens: of a tile, whose rows are 128.
        grid: token tiles, row tiles, parts of K.
        shared_bytes: of a block.
    """

    tile_tokens: int
    grid: tuple[int, int, int]
    shared_bytes: int


def cut(work: Work, sms: int) -> Cut:
    """Choose the tile, and cut K where the tiles would leave some of ``sms`` multiprocessors idle."""
    width = next((width for width in TILE_TOKENS if width >= work.tokens), TILE_TOKENS[-1])
    stages = 4 if width <= 64 else 3  # linear_mma.cuh's kStages
    # The workspace has two parts a multiprocessor, and may have them 96 tokens wide where 128 are a tile.
    blocks = sms * (2 if width <= 64 else 1)
    token_tiles, row_tiles = -(-work.tokens // width), -(-work.rows // BLOCK_M)
    most = 16 if width <= 32 else 8  # the last block of a tile reads the parts of all
    parts = min(blocks // (token_tiles * row_tiles), work.k_tiles // _LEAST_STEPS, most)
    shared_bytes = stages * (BLOCK_M + width) * _STEP_BYTES
    return Cut(width, (token_tiles, row_tiles, max(1, parts)), shared_bytes)


class _Arguments(ctypes.Structure):
    """``GemmArgs`` of ``linear_mma.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "out", "parts", "arrivals")),
        ("x_stride", ctypes.c_longlong),
        *((name, ctypes.c_int32) for name in ("rows", "inputs", "tokens")),
    )


class PortableLinear(Linear):
    """Multiply activations by packed weights; what lies behind the last row of them is not read.

    Args:
        device: where.
    """

    rotates = False

    def _launch(
        self, op: str, x: Array, weight: PackedMatrix, out: Array, parts: Array, arrivals: Array
    ) -> Launch:
        work = Work(weight.outputs, weight.inputs, len(x))
        chosen = cut(work, self._device.sms)
        token_tiles, row_tiles, count = chosen.grid
        needed = token_tiles * row_tiles * count * BLOCK_M * chosen.tile_tokens
        assert count == 1 or needed <= parts.size
        return Launch(
            kernel=self._device.kernels.get(op, f"{op}_mma_n{chosen.tile_tokens}"),
            grid=chosen.grid,
            threads=_THREADS,
            shared_bytes=chosen.shared_bytes,
            cluster=1,
            tokens=np.uint64(x.data.ptr),
            arguments=_Arguments(
                *(0, 0, out.data.ptr, parts.data.ptr, arrivals.data.ptr),
                x.strides[0] // BF16.itemsize,
                *(weight.outputs, weight.inputs, len(x)),
            ),
        )
