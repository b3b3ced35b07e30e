"""How long a product takes that is cut as planned: a model, by which :mod:`.linear_plan` chooses. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wisp_runtime.ops.cuda.device.manifest import constants

if TYPE_CHECKING:
    from wisp_runtime.ops.cuda.gemm.linear_plan import Plan

NARROW = constants("hopper")["gemm_narrow_tokens"]
"""Tokens of a tile up to which the memory is the limit."""

# What an H200 does, in nanoseconds and bytes; fitted to what tests/bench/bench_linear.py measured there.
_MEMORY_BYTES_A_NS, _BLOCK_BYTES_A_NS = 4800.0, 85.0
_START_NS = 2500.0  # until the first sums: the launch, the first copies
_STEP_NS, _STEP_NS_A_TOKEN = 60.0, 2.31
_TALL_STEP_NS, _TALL_STEP_NS_A_TOKEN = 30.0, 3.7  # of three row tiles
_EPILOGUE_NS, _EPILOGUE_NS_A_TOKEN = 500.0, 5.0
_JOIN_NS, _JOIN_NS_A_TOKEN = 1000.0, 28.0
_EVEN_GAIN_NS = 2000.0  # of narrow tiles cut into as many ranges each: no block's range spans two tiles
_SWAP_NS, _SWAP_NS_A_TOKEN = 0.0, 3.0  # between the blocks of a pair
_LONG = 32  # steps of a K that is worth cutting
_BESIDE_BYTES_A_NS = 95.0  # to a block whose neighbours read the same tokens or weights at the same time
# To a block whose ranges begin at another k than its neighbours': L2 hands out every byte anew.
_APART_BYTES_A_NS, _APART_AND_LARGE_BYTES_A_NS = 66.0, 35.0


def estimate_us(plan: Plan) -> float:
    """Say how long the slowest block computes, or the memory takes if that is longer."""
    ranges = max(plan.ranges, 1)
    waves = -(-plan.whole // plan.grid)
    width, step_bytes = plan.tile_tokens, _step_bytes(plan)
    step_ns = _TALL_STEP_NS + _TALL_STEP_NS_A_TOKEN * width
    if plan.row_tiles == 2:
        step_ns = _STEP_NS + _STEP_NS_A_TOKEN * width
    step_ns = max(step_ns, step_bytes / _BESIDE_BYTES_A_NS)
    epilogue_ns = _EPILOGUE_NS + _EPILOGUE_NS_A_TOKEN * width
    join_ns = _JOIN_NS + _JOIN_NS_A_TOKEN * width if plan.is_cut else 0.0
    if _is_even(plan):
        join_ns -= _EVEN_GAIN_NS
    if plan.pairs:
        join_ns = _SWAP_NS + _SWAP_NS_A_TOKEN * width + epilogue_ns / 2
    cut_steps = -(-plan.work.k_tiles // 2) if plan.pairs else -(-plan.line_steps // ranges)
    compute_ns = waves * plan.work.k_tiles * step_ns + cut_steps * max(step_ns, _apart_ns(plan))
    epilogues_ns = (waves + -(-plan.line_tiles // ranges)) * epilogue_ns
    # Up to 64 tokens the ring fills on while the sums of a cut tile are joined.
    joins_alone_ns = 0.0 if plan.whole > 0 and width <= NARROW else join_ns
    memory_ns = _memory_ns(plan) + joins_alone_ns + (0.0 if plan.pairs else epilogue_ns)
    return (_START_NS + max(compute_ns + epilogues_ns + join_ns, memory_ns)) / 1000


def _is_even(plan: Plan) -> bool:
    """Whether all of a product is narrow tiles over a K that is worth cutting, each into as many ranges."""
    is_all = plan.is_cut and plan.whole == 0 and plan.ranges % plan.line_tiles == 0
    return is_all and plan.tile_tokens <= NARROW and plan.work.k_tiles >= _LONG


def _apart_ns(plan: Plan) -> float:
    """Say how long the copies of a step of a cut tile take, where blocks of a kind do not go side by side."""
    if not plan.is_cut or plan.ranges % plan.line_tiles == 0:
        return 0.0
    is_large = plan.token_tiles > 1 and (plan.whole > 0 or plan.lanes < plan.token_tiles)
    return _step_bytes(plan) / (_APART_AND_LARGE_BYTES_A_NS if is_large else _APART_BYTES_A_NS)


def _step_bytes(plan: Plan) -> int:
    """Return what a block copies for a step: 64 columns of a tile's weights and tokens."""
    return (plan.row_tiles * 64 + plan.tile_tokens) * 128


def _memory_ns(plan: Plan) -> float:
    """Each group of token tiles reads the weights once; fewer blocks, as in a last wave, read slower."""
    tile_bytes = plan.row_tiles * 64 * plan.work.inputs * 2 / min(plan.group, plan.token_tiles)
    last = plan.whole % plan.grid
    cut = plan.line_tiles * plan.lanes
    if plan.lanes < plan.group:  # cut tiles of the same weights read them at different times
        cut *= min(plan.group, plan.token_tiles)
    pairs_ns = plan.pairs * tile_bytes / _rate(2 * plan.pairs) if plan.pairs else 0.0
    together_ns = (plan.whole - last) * tile_bytes / _rate(plan.grid) if plan.whole > last else 0.0
    cut_ns = cut * tile_bytes / _rate(plan.ranges * plan.lanes) if cut else 0.0
    return together_ns + cut_ns + pairs_ns + (last * tile_bytes / _rate(last) if last else 0.0)


def _rate(blocks: int) -> float:
    """Bytes a nanosecond that so many blocks get from memory."""
    return _MEMORY_BYTES_A_NS * -math.expm1(-blocks * _BLOCK_BYTES_A_NS / _MEMORY_BYTES_A_NS)
