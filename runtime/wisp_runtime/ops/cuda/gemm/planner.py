"""Choose the tiling of a GEMM by its estimated time. Pure: no arrays, no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from wisp_plan.memory.buffers.gemm import BLOCK_M, BLOCK_N, block_n
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.cost_model import SMALL_N, estimate_us
from wisp_runtime.ops.cuda.gemm.tiling import (
    BLOCK_N_OF_192_ROWS,
    MULTICAST_TOKENS,
    ROW_TILE,
    GemmPlan,
    GemmShape,
)

_MIN_BLOCK_N_OF_SEVERAL = 96  # width of several n-tiles: below, shared memory is the limit
_MAX_TOKENS_OF_ONE = 128  # that one n-tile holds best
_MIN_BLOCK_N_OF_PAIR = constants("hopper")["gemm_min_pair_tokens"]
_GROUP = 8  # n-tiles that read the same weights at the same time: makes about a square of the output
_MULTICAST_WAVES = 4  # full tiles a block from which on sharing copies pays; it saves power, more than time
_MIN_RANGE = 256  # columns of a K-range: shorter ones spend their time on starting and combining
_TOKENS_OF_A_PLAN = 32  # numbers of tokens up to the same multiple have the same plan: planning takes long
_TOLERANCE, _SMALL_N_TOLERANCE = 1.02, 1.003  # estimates this close are equal; few tokens are modelled well


@lru_cache(maxsize=8192)
def plan(shape: GemmShape, sm_count: int) -> GemmPlan:
    """Return the plan that should be fastest on ``sm_count`` SMs; of equals, the one that splits least."""
    rounded = -(-shape.tokens // _TOKENS_OF_A_PLAN) * _TOKENS_OF_A_PLAN
    if shape.tokens > SMALL_N and rounded != shape.tokens:  # every width from there on is a multiple
        return replace(plan(GemmShape(shape.rows, shape.inputs, rounded), sm_count), shape=shape)
    estimates = [(candidate, estimate_us(candidate)) for candidate in _candidates(shape, sm_count)]
    tolerance = _TOLERANCE if shape.tokens > SMALL_N else _SMALL_N_TOLERANCE
    limit_us = tolerance * min(us for _, us in estimates)
    equals = [(candidate, us) for candidate, us in estimates if us <= limit_us]
    return _multicast(min(equals, key=lambda each: (*_demands(each[0]), each[1]))[0])


@lru_cache(maxsize=8192)
def data_parallel_plan(shape: GemmShape, sm_count: int) -> GemmPlan:
    """Return a plan without splits: a row's sums run over K in order, however many tokens there are."""
    return _multicast(unsplit_plan(shape, block_n(shape.tokens), 2, sm_count))


def _demands(plan: GemmPlan) -> tuple[bool, int, int, int, int]:
    """Order plans that should be equally fast: the one that needs less of everything comes first."""
    return plan.is_split, plan.row_tiles, plan.pairs, -plan.block_n, plan.ranges


def _multicast(plan: GemmPlan) -> GemmPlan:
    """Let neighbouring blocks share their tokens where many full tiles of the widest are all there is."""
    grid = plan.grid // 2 * 2
    is_wide = plan.block_n == MULTICAST_TOKENS and plan.row_tiles == 2 and plan.m_tiles % 2 == 0
    if is_wide and plan.full_tiles == plan.tiles and plan.full_tiles >= _MULTICAST_WAVES * plan.grid and grid:
        return replace(plan, grid=grid, streams=1, shares_tokens=True)
    return plan


def _candidates(shape: GemmShape, sm_count: int) -> Iterator[GemmPlan]:
    enough = block_n(shape.tokens)
    for width in BLOCK_N:
        is_several = _MIN_BLOCK_N_OF_SEVERAL <= width < enough and _gains_by_several(shape, sm_count)
        if width != enough and not is_several:
            continue
        if width >= _MIN_BLOCK_N_OF_PAIR:
            yield from _cta_pairs(shape, width, 2, sm_count)
        if width in BLOCK_N_OF_192_ROWS:
            yield from _cta_pairs(shape, width, 3, sm_count)
            yield unsplit_plan(shape, width, 3, sm_count)
        yield from stream_k_plans(shape, width, sm_count)


def stream_k_plans(
    shape: GemmShape, width: int, sm_count: int, *, splits_a_wave: bool = False
) -> Iterator[GemmPlan]:
    """Yield plans of tiles of ``width`` tokens and 128 rows, unsplit and with streams that are split.

    Args:
        splits_a_wave: whether a full wave may be split together with the tiles that fill none: each of these
            has two or three parts then, not as many as there are blocks for it.
    """
    n_tiles = -(-shape.tokens // width)
    for streams in {1, n_tiles} if n_tiles <= min(_GROUP, sm_count) else {1}:
        yield from _stream_k(shape, width, streams, sm_count, splits_a_wave)


def _gains_by_several(shape: GemmShape, sm_count: int) -> bool:
    """Whether several n-tiles may be better than one that holds all tokens: they read the weights again."""
    is_short = -(-shape.rows // BLOCK_M) <= sm_count
    return shape.tokens > BLOCK_N[-1] or (shape.tokens > _MAX_TOKENS_OF_ONE and is_short)


def unsplit_plan(shape: GemmShape, width: int, row_tiles: int, sm_count: int) -> GemmPlan:
    """Split nothing."""
    n_tiles = -(-shape.tokens // width)
    tiles = -(-shape.rows // (ROW_TILE * row_tiles)) * n_tiles
    grid = min(tiles, sm_count)
    return GemmPlan(shape, width, min(_GROUP, n_tiles), tiles, 1, 0, grid=grid, row_tiles=row_tiles)


def _stream_k(
    shape: GemmShape, width: int, streams: int, sm_count: int, splits_a_wave: bool
) -> Iterator[GemmPlan]:
    """Keep all tiles full, or as many as fill all blocks in turn; split the streams of the rest."""
    n_tiles = -(-shape.tokens // width)
    tiles, blocks = -(-shape.rows // BLOCK_M) * n_tiles, sm_count // streams * streams
    full_waves = tiles // blocks
    waves = {full_waves, max(0, full_waves - 1)} if splits_a_wave else {full_waves}
    for full_tiles in {tiles, *(count * blocks for count in waves)}:
        for ranges in _range_counts((tiles - full_tiles) // streams, shape, blocks // streams):
            grid = max(ranges * streams, min(full_tiles, blocks))
            yield GemmPlan(shape, width, min(_GROUP, n_tiles), full_tiles, streams, ranges, grid)


def _cta_pairs(shape: GemmShape, width: int, row_tiles: int, sm_count: int) -> Iterator[GemmPlan]:
    """Keep as many tiles full as fill all blocks in turn; give the rest to CTA pairs, if these suffice."""
    full, blocks = unsplit_plan(shape, width, row_tiles, sm_count), sm_count // 2 * 2
    pairs = full.tiles % blocks if blocks else 0
    if 0 < 2 * pairs <= blocks and shape.k_tiles >= 2 * _min_steps(shape):
        grid = blocks if full.tiles > pairs else 2 * pairs
        yield replace(full, full_tiles=full.tiles - pairs, grid=grid, pairs=pairs)


def _min_steps(shape: GemmShape) -> int:
    return max(1, _MIN_RANGE // shape.block_k)


def _range_counts(stream_tiles: int, shape: GemmShape, max_ranges: int) -> set[int]:
    """Return counts of ranges worth trying: as many as there are blocks, or as many for each tile."""
    if stream_tiles == 0:
        return {0}
    all_blocks = max(1, min(max_ranges, stream_tiles * shape.k_tiles // _min_steps(shape)))
    even = {all_blocks // stream_tiles * stream_tiles, stream_tiles} if all_blocks >= stream_tiles else set()
    return {all_blocks} | even
