"""Cost model for GEMM tilings; :mod:`.planner` picks the cheapest. Pure."""

from __future__ import annotations

import math

from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.tiling import GemmPlan

SMALL_N = constants("hopper")["gemm_narrow_tokens"]
"""Tokens of a tile up to which memory is the limit."""

# An H200 in nanoseconds and bytes; fitted to the measurements of tests/bench/bench_linear.py.
_MEMORY_BYTES_A_NS, _BLOCK_BYTES_A_NS = 4800.0, 85.0
_START_NS = 2500.0  # until the first sums: the launch, the first copies
_STEP_NS, _STEP_NS_A_TOKEN = 60.0, 2.31
_STEP_OF_192_ROWS_NS, _STEP_OF_192_ROWS_NS_A_TOKEN = 30.0, 3.7
_EPILOGUE_NS, _EPILOGUE_NS_A_TOKEN = 500.0, 5.0
_COMBINE_NS, _COMBINE_NS_A_TOKEN = 1000.0, 28.0
_EVEN_GAIN_NS = 2000.0  # gain of equal ranges for each small-N tile: no block's range spans two tiles
_SWAP_NS, _SWAP_NS_A_TOKEN = 0.0, 3.0  # between the blocks of a CTA pair
_LONG_STEPS = 32  # length of a K that is worth splitting
_ALIGNED_BYTES_A_NS = 95.0  # to a block whose neighbours read the same tokens or weights at the same time
# To a block whose ranges begin at another k than its neighbours': L2 hands out every byte anew.
_UNALIGNED_BYTES_A_NS, _UNALIGNED_AND_LARGE_BYTES_A_NS = 66.0, 35.0


def estimate_us(plan: GemmPlan) -> float:
    """Return how long the slowest block computes, or the memory takes if that is longer."""
    ranges = max(plan.ranges, 1)
    waves = -(-plan.full_tiles // plan.grid)
    width, step_bytes, k_tiles = plan.block_n, _step_bytes(plan), plan.shape.k_tiles
    step_ns = _STEP_OF_192_ROWS_NS + _STEP_OF_192_ROWS_NS_A_TOKEN * width
    if plan.row_tiles == 2:
        step_ns = _STEP_NS + _STEP_NS_A_TOKEN * width
    step_ns = max(step_ns, step_bytes / _ALIGNED_BYTES_A_NS)
    epilogue_ns = _EPILOGUE_NS + _EPILOGUE_NS_A_TOKEN * width
    combine_ns = _COMBINE_NS + _COMBINE_NS_A_TOKEN * width if plan.is_split else 0.0
    if _is_even(plan):
        combine_ns -= _EVEN_GAIN_NS
    if plan.pairs:
        combine_ns = _SWAP_NS + _SWAP_NS_A_TOKEN * width + epilogue_ns / 2
    split_steps = -(-k_tiles // 2) if plan.pairs else -(-plan.stream_steps // ranges)
    compute_ns = waves * k_tiles * step_ns + split_steps * max(step_ns, _unaligned_ns(plan))
    epilogues_ns = (waves + -(-plan.stream_tiles // ranges)) * epilogue_ns
    # Of small-N tiles the pipeline fills on while the sums of a split tile are combined.
    combines_alone_ns = 0.0 if plan.full_tiles > 0 and width <= SMALL_N else combine_ns
    memory_ns = _memory_ns(plan) + combines_alone_ns + (0.0 if plan.pairs else epilogue_ns)
    return (_START_NS + max(compute_ns + epilogues_ns + combine_ns, memory_ns)) / 1000


def _is_even(plan: GemmPlan) -> bool:
    """Whether all tiles are small-N over a K that is worth splitting, each split into as many ranges."""
    is_all = plan.is_split and plan.full_tiles == 0 and plan.ranges % plan.stream_tiles == 0
    return is_all and plan.block_n <= SMALL_N and plan.shape.k_tiles >= _LONG_STEPS


def _unaligned_ns(plan: GemmPlan) -> float:
    """Return how long the copies of a step of a split tile take, where neighbouring blocks differ in k."""
    if not plan.is_split or plan.ranges % plan.stream_tiles == 0:
        return 0.0
    is_large = plan.n_tiles > 1 and (plan.full_tiles > 0 or plan.streams < plan.n_tiles)
    return _step_bytes(plan) / (_UNALIGNED_AND_LARGE_BYTES_A_NS if is_large else _UNALIGNED_BYTES_A_NS)


def _step_bytes(plan: GemmPlan) -> int:
    """Return the bytes that a block copies for a step: 64 columns of a tile's weights and tokens."""
    return (plan.row_tiles * 64 + plan.block_n) * 128


def _memory_ns(plan: GemmPlan) -> float:
    """Each group of n-tiles reads the weights once; fewer blocks, as in a last wave, read slower."""
    tile_bytes = plan.row_tiles * 64 * plan.shape.inputs * 2 / min(plan.group, plan.n_tiles)
    last = plan.full_tiles % plan.grid
    split = plan.stream_tiles * plan.streams
    if plan.streams < plan.group:  # split tiles of the same weights read them at different times
        split *= min(plan.group, plan.n_tiles)
    pairs_ns = plan.pairs * tile_bytes / _rate(2 * plan.pairs) if plan.pairs else 0.0
    full = plan.full_tiles - last
    full_ns = full * tile_bytes / _rate(plan.grid) if full > 0 else 0.0
    split_ns = split * tile_bytes / _rate(plan.ranges * plan.streams) if split else 0.0
    return full_ns + split_ns + pairs_ns + (last * tile_bytes / _rate(last) if last else 0.0)


def _rate(blocks: int) -> float:
    """Bytes a nanosecond that so many blocks get from memory."""
    return _MEMORY_BYTES_A_NS * -math.expm1(-blocks * _BLOCK_BYTES_A_NS / _MEMORY_BYTES_A_NS)
