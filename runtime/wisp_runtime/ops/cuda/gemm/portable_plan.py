"""Tilings and kernel arguments of GEMMs on mma.sync, bf16 and quantized. Pure: no arrays, no GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from wisp_plan.memory.buffers.gemm import BLOCK_M
from wisp_plan.quantization.packed_format import PackedFormat
from wisp_runtime.ops.cuda.gemm.tiling import GemmShape

BLOCK_N = (8, 16, 32, 64, 128)
"""Tokens of a tile: each has its entries in ``linear*.cu``."""

BLOCK_N_OF_MANY = 256
"""Tokens of another, of quantized weights: as many fragments serve twice the tokens of 128."""

_STEP_BYTES = 128  # part of a row of x, along K: 64 columns
_MIN_STEPS = 4  # length of a split of K: shorter ones spend their time on starting and combining
_STAGES = 4
_MANY_TOKENS = 1024
_STORES = {"linear": 0, "linear_swiglu": 1, "linear_logits": 2}  # Store of mma_output.cuh


class GemmArguments(ctypes.Structure):
    """``GemmArgs`` of ``mma_output.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "out", "partials", "arrivals")),
        ("x_stride", ctypes.c_longlong),
        *((name, ctypes.c_int32) for name in ("rows", "inputs", "tokens")),
    )


class QuantizedArguments(GemmArguments):
    """``QuantizedArgs`` of ``quantized_mma.cuh``."""

    _fields_ = (
        *((name, ctypes.c_longlong) for name in ("row_scales", "block_scales")),
        *((name, ctypes.c_int32) for name in ("slice_bytes", "group_shift", "zero_points", "store")),
    )


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
    width = _width(shape.tokens)
    stages = _STAGES if width <= 64 else 3  # linear_mma.cuh's kStages
    return PortablePlan(
        width, _grid(shape, width, sm_count, _MIN_STEPS), stages * (BLOCK_M + width) * _STEP_BYTES
    )


def plan_quantized(packed: PackedFormat, shape: GemmShape, sm_count: int) -> PortablePlan:
    """Choose the same for quantized weights; of few tokens a step is a packed tile."""
    width = _quantized_width(packed, shape.tokens)
    chunks = quantized_step(packed, width)
    min_steps = _MIN_STEPS * max(chunks, 2)
    stages = _STAGES if width < BLOCK_N_OF_MANY else 3  # quantized_mma.cuh's kStages
    shared_bytes = stages * chunks * width * _STEP_BYTES
    return PortablePlan(width, _grid(shape, width, sm_count, min_steps), shared_bytes)


def quantized_step(packed: PackedFormat, block_n: int) -> int:
    """Return how many times 64 columns lie between two barriers: ``kStepChunks`` of ``quantized_mma.cuh``."""
    if block_n <= 16:
        return packed.tile_columns // 64
    return 2 if block_n == 32 else 1


def quantized_entry(packed: PackedFormat, block_n: int) -> str:
    """Return the kernel of a format and tile."""
    return f"linear_mma_{quantized_name(packed)}_n{block_n}"


def quantized_name(packed: PackedFormat) -> str:
    """Return the format in kernels' names: int4 has one for groups of 128 and 64, and one for 32."""
    if packed.numbers == "int4":
        return "int4_g32" if packed.group == 32 else "int4"
    return packed.name


def quantized_arguments(packed: PackedFormat, op: str, **gemm: int) -> QuantizedArguments:
    """Return a kernel's arguments.

    Args:
        packed: format of the weight.
        op: ``linear``, ``linear_swiglu`` or ``linear_logits``.
        gemm: :class:`GemmArguments`.
    """
    block_scales, row_scales, _ = packed.sections(gemm["rows"], gemm["inputs"])
    return QuantizedArguments(
        **gemm,
        row_scales=row_scales,
        block_scales=block_scales,
        slice_bytes=packed.slice_bytes,
        group_shift=int(packed.group == 128),
        zero_points=packed.zero_points_at if packed.has_zero_points else 0,
        store=_STORES[op],
    )


def _width(tokens: int) -> int:
    return next((width for width in BLOCK_N if width >= tokens), BLOCK_N[-1])


def _quantized_width(packed: PackedFormat, tokens: int) -> int:
    """Return 256 where that pads no more tokens than 128, or they are many, and registers suffice."""
    is_wide = -(-tokens // BLOCK_N[-1]) % 2 == 0 or tokens > _MANY_TOKENS
    has_registers = not packed.has_block_scales and (packed.numbers, packed.group) != ("int4", 32)
    return BLOCK_N_OF_MANY if tokens > BLOCK_N[-1] and is_wide and has_registers else _width(tokens)


def _grid(shape: GemmShape, width: int, sm_count: int, min_steps: int) -> tuple[int, int, int]:
    # There are two partial tiles an SM, which may be 96 tokens wide where a tile has 128.
    blocks = sm_count * (2 if width <= 64 else 1)
    n_tiles, m_tiles = -(-shape.tokens // width), -(-shape.rows // BLOCK_M)
    max_splits = 16 if width <= 32 else 8  # the last block of a tile reads the partial sums of all
    splits = min(blocks // (n_tiles * m_tiles), shape.k_tiles // min_steps, max_splits)
    return n_tiles, m_tiles, max(1, splits)
