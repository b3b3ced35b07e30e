"""Choose how a matrix product is cut into tiles and shared between thread blocks. Pure: no arrays, no GPU.

A tile is 128 weight rows, or 192 of a tall one, by ``tile_tokens`` tokens. Some tiles are computed whole, by
one block each in turn; the steps (64 columns of K) of the others lie on lines that are cut into equal ranges,
whatever tiles they fall into (stream-K, Osama et al. 2023, arXiv:2301.03598). Or the last tiles are shared by
pairs of blocks, half of K each, that add their sums on the chip. ``tile_scheduler.cuh`` walks what is
planned here; :func:`walk` is its twin.

These mirror the kernels, and change with them: BLOCK_N and TALL_TOKENS (LINEAR_ENTRIES in
``linear.cuh``), and the buffers of :func:`staging_bytes` (kBuffers and kChunk in ``epilogue.cuh``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from wisp_plan.memory.buffers.gemm import BLOCK_M, BLOCK_N, block_n
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.linear_cost import NARROW, estimate_us

ROW_TILE = 64
STEP_COLUMNS = 64
TALL_TOKENS = (64, 128, 160, 192)
"""Tokens of a tall tile, of three row tiles."""
MULTICAST_TOKENS = constants("hopper")["gemm_multicast_tokens"]
"""Tokens of a tile whose copies two blocks may share."""

_NARROWEST_OF_MANY = 96  # tokens of a tile where one does not hold all: below, shared memory is the limit
_MOST_IN_ONE = 128  # tokens that one tile holds best
_NARROWEST_OF_PAIR = constants("hopper")["gemm_min_pair_tokens"]  # tokens of a tile that a pair may share
_GROUP = 8  # token tiles that read the same weights at the same time: makes about a square of the output
_MANY_WAVES = 4  # of whole tiles: what is worth sharing copies for; it saves power, more than time
_LEAST_STEPS = 4  # of a range: shorter ones spend their time on starting and joining
_ALIKE_TOKENS = 32  # numbers of tokens up to the same multiple have the same plan: planning takes long
_AS_GOOD, _AS_GOOD_NARROW = 1.02, 1.003  # estimates this close are equal; few tokens are modelled well
_MOST_STAGES = constants("hopper")["gemm_max_stages"]
_STATIC_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Work:
    """A product to plan.

    Attributes:
        rows: of the weight matrix.
        inputs: its columns.
        tokens: rows of X, at least 1.
    """

    rows: int
    inputs: int
    tokens: int

    @property
    def k_tiles(self) -> int:
        """Steps along K."""
        return -(-self.inputs // STEP_COLUMNS)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a product is cut; the numbers of ``GemmArgs`` in ``tile_scheduler.cuh``.

    Attributes:
        work: the product.
        tile_tokens: tokens of a tile.
        group: token tiles that are neighbours in the order of tiles.
        whole: tiles that are not cut, the first ones.
        lanes: lines that the other tiles' steps lie on.
        ranges: of each line.
        grid: thread blocks.
        pairs: tiles after the whole ones that two neighbouring blocks share; then there are no lines.
        row_tiles: packed row tiles of a tile, 2; or 3 of a tall one, and then no lines either.
        shares_tokens: each two neighbouring blocks take two neighbouring units of a token tile at a time, and
            each copies half of its tokens to both; then all tiles are whole.
    """

    work: Work
    tile_tokens: int
    group: int
    whole: int
    lanes: int
    ranges: int
    grid: int
    pairs: int = 0
    row_tiles: int = 2
    shares_tokens: bool = False

    @property
    def units(self) -> int:
        """Tiles along the weight's rows."""
        return -(-self.work.rows // (ROW_TILE * self.row_tiles))

    @property
    def token_tiles(self) -> int:
        """Tiles along the tokens."""
        return -(-self.work.tokens // self.tile_tokens)

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.units * self.token_tiles

    @property
    def line_tiles(self) -> int:
        """Tiles on a line."""
        return (self.tiles - self.whole - self.pairs) // self.lanes

    @property
    def line_steps(self) -> int:
        """Steps on a line."""
        return self.line_tiles * self.work.k_tiles

    @property
    def is_cut(self) -> bool:
        """Whether sums of parts of a tile go through memory."""
        return self.ranges > 0 and self.line_tiles % self.ranges > 0


@dataclass(frozen=True, slots=True)
class Piece:
    """The steps of a tile that one block computes; ``place`` is the tile's on its line, -1 on none."""

    unit: int
    token_tile: int
    k_begin: int
    k_end: int
    place: int


def stage_bytes(tile_tokens: int, row_tiles: int = 2) -> int:
    """Return the bytes of one step in shared memory: packed blocks, and the tokens."""
    return (row_tiles * ROW_TILE + tile_tokens) * STEP_COLUMNS * 2


def staging_bytes(tile_tokens: int, row_tiles: int = 2) -> int:
    """Return the bytes in which results are transposed: the most that an epilogue wants."""
    buffers = 4 if tile_tokens == BLOCK_N[-1] else 2  # epilogue.cuh's kBuffers
    return buffers * row_tiles * min(tile_tokens, 32) * ROW_TILE * 2


def stages(tile_tokens: int, shared_bytes: int, row_tiles: int = 2) -> int:
    """Return how many steps fit into the ring of a block that may have ``shared_bytes``."""
    room_bytes = shared_bytes - _STATIC_BYTES - staging_bytes(tile_tokens, row_tiles)
    return min(_MOST_STAGES, room_bytes // stage_bytes(tile_tokens, row_tiles))


@lru_cache(maxsize=8192)
def plan(work: Work, sms: int) -> Plan:
    """Return the plan that should be fastest on ``sms`` multiprocessors; of equals, what cuts least."""
    alike = -(-work.tokens // _ALIKE_TOKENS) * _ALIKE_TOKENS
    if work.tokens > NARROW and alike != work.tokens:  # every width from there on is a multiple
        return replace(plan(Work(work.rows, work.inputs, alike), sms), work=work)
    estimates = [(one, estimate_us(one)) for one in _candidates(work, sms)]
    margin = _AS_GOOD if work.tokens > NARROW else _AS_GOOD_NARROW
    enough_us = margin * min(us for _, us in estimates)
    equals = [(one, us) for one, us in estimates if us <= enough_us]
    return _shared(min(equals, key=lambda each: (*_strain(each[0]), each[1]))[0])


@lru_cache(maxsize=8192)
def whole_plan(work: Work, sms: int) -> Plan:
    """Return a plan that cuts nothing: a row's sums run over K in order, however many tokens there are."""
    width = block_n(work.tokens)
    return _shared(_whole(work, width, 2, sms))


def _strain(plan: Plan) -> tuple[bool, int, int, int, int]:
    """Order plans that should be equally fast: what needs less of everything comes first."""
    return plan.is_cut, plan.row_tiles, plan.pairs, -plan.tile_tokens, plan.ranges


def _shared(plan: Plan) -> Plan:
    """Let neighbouring blocks share their tokens where many whole tiles of the widest are all there is."""
    grid = plan.grid // 2 * 2
    is_wide = plan.tile_tokens == MULTICAST_TOKENS and plan.row_tiles == 2 and plan.units % 2 == 0
    if is_wide and plan.whole == plan.tiles and plan.whole >= _MANY_WAVES * plan.grid and grid:
        return replace(plan, grid=grid, lanes=1, shares_tokens=True)
    return plan


def _candidates(work: Work, sms: int) -> Iterator[Plan]:
    enough = block_n(work.tokens)
    for width in BLOCK_N:
        token_tiles = -(-work.tokens // width)
        if width != enough and not (_NARROWEST_OF_MANY <= width < enough and _gains_by_many(work, sms)):
            continue
        if width >= _NARROWEST_OF_PAIR:
            yield from _paired(work, width, 2, sms)
        if width in TALL_TOKENS:
            yield from _paired(work, width, 3, sms)
            yield _whole(work, width, 3, sms)
        for lanes in {1, token_tiles} if token_tiles <= min(_GROUP, sms) else {1}:
            yield from _cuts(work, width, lanes, sms)


def _gains_by_many(work: Work, sms: int) -> bool:
    """Whether several tiles of tokens may be better than one that holds all: they read the weights again."""
    return work.tokens > BLOCK_N[-1] or (work.tokens > _MOST_IN_ONE and -(-work.rows // BLOCK_M) <= sms)


def _whole(work: Work, width: int, row_tiles: int, sms: int) -> Plan:
    """Cut nothing."""
    token_tiles = -(-work.tokens // width)
    tiles = -(-work.rows // (ROW_TILE * row_tiles)) * token_tiles
    return Plan(work, width, min(_GROUP, token_tiles), tiles, 1, 0, grid=min(tiles, sms), row_tiles=row_tiles)


def _cuts(work: Work, width: int, lanes: int, sms: int) -> Iterator[Plan]:
    """Leave all tiles whole, or as many as fill all blocks in turn; cut the lines of the rest."""
    token_tiles = -(-work.tokens // width)
    tiles, blocks = -(-work.rows // BLOCK_M) * token_tiles, sms // lanes * lanes
    for whole in {tiles, tiles // blocks * blocks}:
        for ranges in _ranges((tiles - whole) // lanes, work.k_tiles, blocks // lanes):
            grid = max(ranges * lanes, min(whole, blocks))
            yield Plan(work, width, min(_GROUP, token_tiles), whole, lanes, ranges, grid)


def _paired(work: Work, width: int, row_tiles: int, sms: int) -> Iterator[Plan]:
    """Leave as many tiles whole as fill all blocks in turn; give the rest to pairs, if there are enough."""
    whole, blocks = _whole(work, width, row_tiles, sms), sms // 2 * 2
    pairs = whole.tiles % blocks if blocks else 0
    if 0 < 2 * pairs <= blocks and work.k_tiles >= 2 * _LEAST_STEPS:
        grid = blocks if whole.tiles > pairs else 2 * pairs
        yield replace(whole, whole=whole.tiles - pairs, grid=grid, pairs=pairs)


def _ranges(line_tiles: int, k_tiles: int, most: int) -> set[int]:
    """Return counts of ranges worth trying: as many as there are blocks, or as many for each tile."""
    if line_tiles == 0:
        return {0}
    full = max(1, min(most, line_tiles * k_tiles // _LEAST_STEPS))
    even = {full // line_tiles * line_tiles, line_tiles} if full >= line_tiles else set()
    return {full} | even


def walk(plan: Plan, block: int) -> Iterator[Piece]:
    """Yield what a thread block computes, in order: the twin of ``LinearSchedule``."""
    k_tiles, lane, which = plan.work.k_tiles, block % plan.lanes, block // plan.lanes
    if which < plan.ranges:
        at, end = (plan.line_steps * cut // plan.ranges for cut in (which, which + 1))
        while at < end:
            place, k_begin = divmod(at, k_tiles)
            k_end = min(k_tiles, k_begin + end - at)
            yield Piece(*_tile(plan, plan.whole + place * plan.lanes + lane), k_begin, k_end, place)
            at += k_end - k_begin
    together = 2 if plan.shares_tokens else 1
    for index in range(block // together, plan.whole // together, plan.grid // together):
        unit, token_tile = _tile(plan, index)
        yield Piece(unit * together + block % together, token_tile, 0, k_tiles, -1)
    if block // 2 < plan.pairs:
        half = (k_tiles // 2, k_tiles) if block % 2 else (0, k_tiles // 2)
        yield Piece(*_tile(plan, plan.whole + block // 2), *half, -1)


def sharers(plan: Plan, place: int) -> tuple[int, int]:
    """Return the first and last range that share a line's tile: the twin of ``LinearParts``."""
    begin, end = place * plan.work.k_tiles, (place + 1) * plan.work.k_tiles
    return ((begin + 1) * plan.ranges - 1) // plan.line_steps, (end * plan.ranges - 1) // plan.line_steps


def _tile(plan: Plan, index: int) -> tuple[int, int]:
    """Return the unit (or two units that share their tokens) and token tile of a tile's number."""
    units = plan.units // 2 if plan.shares_tokens else plan.units
    first = index // (plan.group * units) * plan.group
    within = index - first * units
    wide = min(plan.group, plan.token_tiles - first)
    return within // wide, first + within % wide
