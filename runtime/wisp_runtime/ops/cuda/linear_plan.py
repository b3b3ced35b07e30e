"""Choose how a matrix product is cut into tiles and shared between thread blocks. Pure: no arrays, no GPU.

A tile is 128 weight rows by ``tile_tokens`` tokens. Some tiles are computed whole, by one block each in turn;
the steps (64 columns of K) of the others lie on lines that are cut into equal ranges, whatever tiles they
fall into. Or the last tiles are shared by pairs of blocks, half of K each, that add their sums on the chip.
``linear_schedule.cuh`` walks what is planned here; :func:`walk` is its twin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

UNIT_ROWS = 128
STEP_COLUMNS = 64
TILE_TOKENS = (8, 16, 32, 64, 96, 128, 160, 192, 224, 256)
"""Tokens of a tile: each has its entries in ``linear*.cu``."""

_NARROWEST_OF_MANY = 96  # tokens of a tile where one does not hold all: below, shared memory is the limit
_NARROWEST_OF_PAIR = 64  # tokens of a tile that a pair may share: linear_pair.cuh's kLeastPairTokens
_GROUP = 8  # token tiles that read the same weights at the same time: makes about a square of the output
_NARROW = 64  # tokens up to which the memory is the limit
_LEAST_STEPS = 4  # of a range: shorter ones spend their time on starting and joining
_ALIKE_TOKENS = 32  # numbers of tokens up to the same multiple have the same plan: planning takes long
_AS_GOOD = 1.01  # estimates this close are equal
_MOST_STAGES = 16
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
    def units(self) -> int:
        """Tiles along the weight's rows."""
        return -(-self.rows // UNIT_ROWS)

    @property
    def k_tiles(self) -> int:
        """Steps along K."""
        return -(-self.inputs // STEP_COLUMNS)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a product is cut; the numbers of ``LinearArgs`` in ``linear_schedule.cuh``.

    Attributes:
        work: the product.
        tile_tokens: tokens of a tile.
        group: token tiles that are neighbours in the order of tiles.
        whole: tiles that are not cut, the first ones.
        lanes: lines that the other tiles' steps lie on.
        ranges: of each line.
        grid: thread blocks.
        pairs: tiles after the whole ones that two neighbouring blocks share; then there are no lines.
    """

    work: Work
    tile_tokens: int
    group: int
    whole: int
    lanes: int
    ranges: int
    grid: int
    pairs: int = 0

    @property
    def token_tiles(self) -> int:
        """Tiles along the tokens."""
        return -(-self.work.tokens // self.tile_tokens)

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.work.units * self.token_tiles

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


def stage_bytes(tile_tokens: int) -> int:
    """Return the bytes of one step in shared memory: two packed blocks, and the tokens."""
    return 2 * STEP_COLUMNS * STEP_COLUMNS * 2 + tile_tokens * STEP_COLUMNS * 2


def staging_bytes(tile_tokens: int) -> int:
    """Return the bytes in which results turn over: the most that an epilogue wants."""
    return 4 * min(tile_tokens, 32) * STEP_COLUMNS * 2


def stages(tile_tokens: int, shared_bytes: int) -> int:
    """Return how many steps fit into the ring of a block that may have ``shared_bytes``."""
    room_bytes = shared_bytes - _STATIC_BYTES - staging_bytes(tile_tokens)
    return min(_MOST_STAGES, room_bytes // stage_bytes(tile_tokens))


@lru_cache(maxsize=8192)
def plan(work: Work, sms: int) -> Plan:
    """Return the plan that should be fastest on ``sms`` multiprocessors; of equals, what cuts least."""
    alike = -(-work.tokens // _ALIKE_TOKENS) * _ALIKE_TOKENS
    if work.tokens > _NARROW and alike != work.tokens:  # every width from there on is a multiple
        return replace(plan(Work(work.rows, work.inputs, alike), sms), work=work)
    estimates = [(one, estimate_us(one)) for one in _candidates(work, sms)]
    enough_us = _AS_GOOD * min(us for _, us in estimates)
    equals = [(one, us) for one, us in estimates if us <= enough_us]
    return min(equals, key=lambda each: (each[0].is_cut, each[0].pairs, -each[0].tile_tokens, each[1]))[0]


def _candidates(work: Work, sms: int) -> Iterator[Plan]:
    enough = next((width for width in TILE_TOKENS if width >= work.tokens), TILE_TOKENS[-1])
    for width in TILE_TOKENS:
        token_tiles = -(-work.tokens // width)
        if _NARROWEST_OF_PAIR <= width <= enough:
            yield from _paired(work, width, sms)
        if width != enough and not _NARROWEST_OF_MANY <= width < enough:
            continue
        for lanes in {1, token_tiles} if token_tiles <= min(_GROUP, sms) else {1}:
            yield from _cuts(work, width, lanes, sms)


def _cuts(work: Work, width: int, lanes: int, sms: int) -> Iterator[Plan]:
    """Leave all tiles whole, or as many as fill all blocks in turn; cut the lines of the rest."""
    token_tiles = -(-work.tokens // width)
    tiles, blocks = work.units * token_tiles, sms // lanes * lanes
    for whole in {tiles, tiles // blocks * blocks}:
        for ranges in _ranges((tiles - whole) // lanes, work.k_tiles, blocks // lanes):
            grid = max(ranges * lanes, min(whole, blocks))
            yield Plan(work, width, min(_GROUP, token_tiles), whole, lanes, ranges, grid)


def _paired(work: Work, width: int, sms: int) -> Iterator[Plan]:
    """Leave as many tiles whole as fill all blocks in turn; give the rest to pairs, if there are enough."""
    token_tiles = -(-work.tokens // width)
    tiles, blocks = work.units * token_tiles, sms // 2 * 2
    whole = tiles // blocks * blocks if blocks else tiles
    pairs = tiles - whole
    if 0 < 2 * pairs <= blocks and work.k_tiles >= 2 * _LEAST_STEPS:
        grid = blocks if whole else 2 * pairs
        yield Plan(work, width, min(_GROUP, token_tiles), whole, 1, 0, grid, pairs)


def _ranges(line_tiles: int, k_tiles: int, most: int) -> set[int]:
    """Return counts of ranges worth trying: as many as there are blocks, or as many for each tile."""
    if line_tiles == 0:
        return {0}
    full = max(1, min(most, line_tiles * k_tiles // _LEAST_STEPS))
    even = {full // line_tiles * line_tiles, line_tiles} if full >= line_tiles else set()
    return {full} | even


# What an H200 does, in nanoseconds and bytes; fitted to what tests/bench/bench_linear.py measured there.
_MEMORY_BYTES_A_NS, _BLOCK_BYTES_A_NS = 4800.0, 85.0
_START_NS = 2500.0  # until the first sums: the launch, the first copies
_STEP_NS, _STEP_NS_A_TOKEN = 60.0, 2.31
_EPILOGUE_NS, _EPILOGUE_NS_A_TOKEN = 500.0, 5.0
_JOIN_NS, _JOIN_NS_A_TOKEN = 1000.0, 28.0
_SWAP_NS, _SWAP_NS_A_TOKEN = 1000.0, 10.0  # between the blocks of a pair
_BESIDE_BYTES_A_NS = 95.0  # to a block whose neighbours read the same tokens or weights at the same time
# To a block whose ranges begin at another k than its neighbours': L2 hands out every byte anew.
_APART_BYTES_A_NS, _APART_AND_LARGE_BYTES_A_NS = 66.0, 35.0


def estimate_us(plan: Plan) -> float:
    """Say how long the slowest block computes, or the memory takes if that is longer."""
    width, ranges = plan.tile_tokens, max(plan.ranges, 1)
    waves = -(-plan.whole // plan.grid)
    step_ns = max(_STEP_NS + _STEP_NS_A_TOKEN * width, stage_bytes(width) / _BESIDE_BYTES_A_NS)
    epilogue_ns = _EPILOGUE_NS + _EPILOGUE_NS_A_TOKEN * width
    join_ns = _JOIN_NS + _JOIN_NS_A_TOKEN * width if plan.is_cut else 0.0
    if plan.pairs:
        join_ns = _SWAP_NS + _SWAP_NS_A_TOKEN * width + epilogue_ns / 2
    cut_steps = -(-plan.work.k_tiles // 2) if plan.pairs else -(-plan.line_steps // ranges)
    compute_ns = waves * plan.work.k_tiles * step_ns + cut_steps * max(step_ns, _apart_ns(plan))
    epilogues_ns = (waves + -(-plan.line_tiles // ranges)) * epilogue_ns
    # Up to 64 tokens the ring fills on while the sums of a cut tile are joined.
    joins_alone_ns = 0.0 if plan.whole > 0 and width <= _NARROW else join_ns
    memory_ns = _memory_ns(plan) + joins_alone_ns + (0.0 if plan.pairs else epilogue_ns)
    return (_START_NS + max(compute_ns + epilogues_ns + join_ns, memory_ns)) / 1000


def _apart_ns(plan: Plan) -> float:
    """Say how long the copies of a step of a cut tile take, where blocks of a kind do not go side by side."""
    if not plan.is_cut or plan.ranges % plan.line_tiles == 0:
        return 0.0
    is_large = plan.token_tiles > 1 and (plan.whole > 0 or plan.lanes < plan.token_tiles)
    return stage_bytes(plan.tile_tokens) / (_APART_AND_LARGE_BYTES_A_NS if is_large else _APART_BYTES_A_NS)


def _memory_ns(plan: Plan) -> float:
    """Each group of token tiles reads the weights once; fewer blocks, as in a last wave, read slower."""
    tile_bytes = UNIT_ROWS * plan.work.inputs * 2 / min(plan.group, plan.token_tiles)
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
    for index in range(block, plan.whole, plan.grid):
        yield Piece(*_tile(plan, index), 0, k_tiles, -1)
    if block // 2 < plan.pairs:
        half = (k_tiles // 2, k_tiles) if block % 2 else (0, k_tiles // 2)
        yield Piece(*_tile(plan, plan.whole + block // 2), *half, -1)


def sharers(plan: Plan, place: int) -> tuple[int, int]:
    """Return the first and last range that share a line's tile: the twin of ``LinearParts``."""
    begin, end = place * plan.work.k_tiles, (place + 1) * plan.work.k_tiles
    return ((begin + 1) * plan.ranges - 1) // plan.line_steps, (end * plan.ranges - 1) // plan.line_steps


def _tile(plan: Plan, index: int) -> tuple[int, int]:
    """Return the unit and token tile of a tile's number."""
    first = index // (plan.group * plan.work.units) * plan.group
    within = index - first * plan.work.units
    wide = min(plan.group, plan.token_tiles - first)
    return within // wide, first + within % wide
