"""Pipelines of a GEMM with quantized weights, and the choice of its tiling. Pure: no arrays, no GPU.

Tiles are those of :mod:`.tiling`; a step along K is a tile of weights: 128 columns of 8 bits, 256 of 4.
``linear_quantized.cuh`` has the kernels of BLOCK_N.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from wisp_plan.quantization.packed_format import PackedFormat
from wisp_runtime.ops.cuda.gemm.planner import stream_k_plans, unsplit_plan
from wisp_runtime.ops.cuda.gemm.tiling import BLOCK_K, GemmPlan, GemmShape, staging_bytes

BLOCK_N = (8, 16, 32, 64, 128, 256)
"""Tokens of a tile: each has its entries (QUANTIZED_ENTRIES)."""

BLOCK_N_OF_W8A8 = (64, 128, 192)
"""Tokens of a tile where activations are E4M3 too."""

MIN_W8A8_TOKENS = 65
"""Tokens from which on activations are E4M3 where weights are."""

MAX_WEIGHT_STAGES, MAX_TOKEN_STAGES = 16, 32
_STATIC_BYTES = 1024
_BLOCK_SCALE_BYTES = 128  # in a stage, of a row tile
_MIN_TOKEN_STAGES = 4
_FEW_TOKENS = 32  # of a tile that the weights' way to the SMs limits
_MIN_WGMMA_TOKENS = 32  # of a tile: narrower ones are multiplied by dequantized.cuh's multiply_by_warp

# An H200 in nanoseconds and bytes.
_MEMORY_BYTES_A_NS, _BLOCK_BYTES_A_NS, _L2_BYTES_A_NS = 4600.0, 85.0, 95.0
_CLOCK_GHZ = 1.7
_START_NS = 3000.0
_STEP_NS, _STEP_NS_OF_FEW = 100.0, 200.0
_STEP_NS_OF_CODES = {64: 340.0, 128: 490.0, 192: 655.0}  # the tokens of a tile; a scale a row
_STEP_NS_OF_BLOCKS = {64: 540.0, 128: 690.0, 192: 930.0}
_EPILOGUE_NS, _EPILOGUE_NS_A_TOKEN = 500.0, 9.0
_COMBINE_NS, _COMBINE_NS_A_TOKEN = 1000.0, 28.0
_PARTS_OF_FEW = 4  # of a tile of few tokens: more take longer to combine
_INSTRUCTIONS_A_WEIGHT = {"e4m3": 2.4, "int8": 2.2, "int4": 2.8, "e2m1": 3.2}
_TOLERANCE = 1.02


@dataclass(frozen=True, slots=True)
class Stages:
    """Stages of the two pipelines of a block, and its shared memory.

    Attributes:
        weights: stages of two row tiles of weights.
        tokens: stages of 64 columns of a tile's tokens.
        shared_bytes: dynamic shared memory.
    """

    weights: int
    tokens: int
    shared_bytes: int


def slot_bytes(packed: PackedFormat) -> int:
    """Return the bytes of a row tile in a stage: the tile, and its block scales."""
    return -(-packed.tile_bytes // 128) * 128 + _BLOCK_SCALE_BYTES * packed.has_block_scales


@lru_cache(maxsize=256)
def stages(packed: PackedFormat, width: int, shared_bytes: int, is_w8a8: bool = False) -> Stages:
    """Divide a block's shared memory between the pipelines: as many columns in one as in the other."""
    weight_bytes, token_bytes, boxes = 2 * slot_bytes(packed), width * 128, packed.tile_columns // BLOCK_K
    if is_w8a8:  # a stage is 128 columns of codes, and their scales
        token_bytes, boxes = width * 132, 1
    staging = staging_bytes(width)
    spare = shared_bytes - _STATIC_BYTES - staging
    tokens = max(_MIN_TOKEN_STAGES, spare // (weight_bytes + boxes * token_bytes) * boxes)
    tokens = min(tokens, MAX_TOKEN_STAGES)
    weights = min(MAX_WEIGHT_STAGES, (spare - tokens * token_bytes) // weight_bytes)
    return Stages(weights, tokens, weights * weight_bytes + tokens * token_bytes + staging)


@lru_cache(maxsize=8192)
def plan_quantized(packed: PackedFormat, shape: GemmShape, sm_count: int) -> GemmPlan:
    """Return the plan that should be fastest on ``sm_count`` SMs; of equals, one without splits."""
    estimates = [(plan, estimate_us(packed, plan)) for plan in _candidates(packed, shape, sm_count)]
    limit_us = _TOLERANCE * min(us for _, us in estimates)
    equals = [(plan, us) for plan, us in estimates if us <= limit_us]
    return min(equals, key=lambda each: (each[0].is_split, -each[0].block_n, each[1]))[0]


@lru_cache(maxsize=8192)
def unsplit_quantized(packed: PackedFormat, shape: GemmShape, sm_count: int) -> GemmPlan:
    """Return a plan without splits: a row's sums run over K in order, however many tokens there are."""
    del packed
    width = max(block_n(shape.tokens), _MIN_WGMMA_TOKENS)  # fewer tokens are summed in another order
    return unsplit_plan(shape, width, 2, sm_count)


@lru_cache(maxsize=8192)
def plan_w8a8(packed: PackedFormat, shape: GemmShape, sm_count: int) -> GemmPlan:
    """Return the plan of E4M3 activations that should be fastest."""
    enough = next((width for width in BLOCK_N_OF_W8A8 if width >= shape.tokens), BLOCK_N_OF_W8A8[-1])
    widths = [width for width in BLOCK_N_OF_W8A8 if width <= enough]
    plans = [plan for width in widths for plan in stream_k_plans(shape, width, sm_count)]
    estimates = [(plan, estimate_us(packed, plan, is_w8a8=True)) for plan in plans]
    limit_us = _TOLERANCE * min(us for _, us in estimates)
    equals = [(plan, us) for plan, us in estimates if us <= limit_us]
    return min(equals, key=lambda each: (each[0].is_split, -each[0].block_n, each[1]))[0]


def block_n(tokens: int) -> int:
    """Return the narrowest tile that holds ``tokens``, or the widest."""
    return next((width for width in BLOCK_N if width >= tokens), BLOCK_N[-1])


def estimate_us(packed: PackedFormat, plan: GemmPlan, is_w8a8: bool = False) -> float:
    """Return how long the slowest block computes, or the memory takes if that is longer."""
    ranges, width, k_tiles = max(plan.ranges, 1), plan.block_n, plan.shape.k_tiles
    step_ns = _step_ns(packed, width, is_w8a8)
    waves, split_steps = -(-plan.full_tiles // plan.grid), -(-plan.stream_steps // ranges)
    epilogue_ns = _EPILOGUE_NS + _EPILOGUE_NS_A_TOKEN * width
    epilogues = waves + -(-plan.stream_tiles // ranges)
    combine_ns = _combine_ns(plan) if plan.is_split else 0.0
    compute_ns = (waves * k_tiles + split_steps) * step_ns + epilogues * epilogue_ns
    reads = -(-plan.n_tiles // plan.group)
    weight_bytes = reads * plan.m_tiles * 2 * k_tiles * packed.tile_bytes
    memory_ns = weight_bytes / _rate(plan.grid) + epilogue_ns
    return (_START_NS + max(compute_ns, memory_ns) + combine_ns) / 1000


def _combine_ns(plan: GemmPlan) -> float:
    """Return the time in which the last block of a split tile adds the others' sums."""
    combine_ns = _COMBINE_NS + _COMBINE_NS_A_TOKEN * plan.block_n
    if plan.block_n > _FEW_TOKENS:
        return combine_ns
    return combine_ns * max(1.0, plan.ranges / plan.stream_tiles / _PARTS_OF_FEW)


def _step_ns(packed: PackedFormat, width: int, is_w8a8: bool) -> float:
    """Return the time of a step: the longest of tensor cores, dequantization, and copies."""
    columns = packed.tile_columns
    if is_w8a8:
        return (_STEP_NS_OF_BLOCKS if packed.has_block_scales else _STEP_NS_OF_CODES)[width]
    tensor_ns = 2 * columns / 16 * max(width, 16) / 2 / _CLOCK_GHZ
    dequantize_ns = columns * _INSTRUCTIONS_A_WEIGHT[packed.numbers] / _CLOCK_GHZ
    copy_ns = (2 * packed.tile_bytes + columns * width * 2) / _L2_BYTES_A_NS
    fixed_ns = _STEP_NS_OF_FEW if width <= _FEW_TOKENS else _STEP_NS
    return max(fixed_ns + tensor_ns + dequantize_ns / 2, dequantize_ns, copy_ns)


def _rate(blocks: int) -> float:
    """Bytes a nanosecond that so many blocks get from memory."""
    return _MEMORY_BYTES_A_NS * -math.expm1(-blocks * _BLOCK_BYTES_A_NS / _MEMORY_BYTES_A_NS)


def _candidates(packed: PackedFormat, shape: GemmShape, sm_count: int) -> Iterator[GemmPlan]:
    del packed
    enough = block_n(shape.tokens)
    for width in BLOCK_N:
        if width == enough or (width == BLOCK_N[-2] and enough == BLOCK_N[-1]):
            yield from stream_k_plans(shape, width, sm_count, splits_a_wave=width <= _FEW_TOKENS)
