"""Tilings of a GEMM and their assignment to thread blocks. Pure: no arrays, no GPU.

A tile is 128 or 192 weight rows (two or three 64-row tiles) by ``block_n`` tokens. Full tiles are
data-parallel: one block computes all of K, 64 columns a step. The steps of the other tiles lie on streams,
which are split into equal K-ranges, whatever tiles they fall into (stream-K, Osama et al. 2023,
arXiv:2301.03598). Or each of the last tiles belongs to a CTA pair, half of K each, that add their sums on the
chip.

:func:`iter_tiles` is the reference implementation of ``tile_scheduler.cuh``, :func:`split_owners` of
``split_k.cuh``. ``linear.cuh`` has the kernels of BLOCK_N and BLOCK_N_OF_192_ROWS (LINEAR_ENTRIES), and
``epilogue.cuh`` the buffers of :func:`staging_bytes` (kBuffers and kChunk).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wisp_plan.memory.buffers.gemm import BLOCK_M, BLOCK_N
from wisp_runtime.ops.cuda.device.manifest import constants

ROW_TILE = 64
"""Weight rows that one warpgroup multiplies."""

BLOCK_K = 64
"""Columns of K in a step."""

BLOCK_N_OF_192_ROWS = (64, 128, 160, 192)
"""Tokens of a 192-row tile."""

MULTICAST_TOKENS = constants("hopper")["gemm_multicast_tokens"]
"""Tokens of a tile whose copies two blocks may share."""

_MAX_STAGES = constants("hopper")["gemm_max_stages"]
_STATIC_BYTES = 1024


@dataclass(frozen=True, slots=True)
class GemmShape:
    """Sizes of a GEMM.

    Attributes:
        rows: rows of the weight matrix.
        inputs: columns of the weight matrix: K.
        tokens: rows of X, at least 1.
        block_k: columns of K in a step; of quantized weights those of a tile.
    """

    rows: int
    inputs: int
    tokens: int
    block_k: int = BLOCK_K

    @property
    def k_tiles(self) -> int:
        """Steps along K."""
        return -(-self.inputs // self.block_k)


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """Tiling of a GEMM; the numbers of ``GemmArgs`` in ``tile_scheduler.cuh``.

    Attributes:
        shape: sizes of the GEMM.
        block_n: tokens of a tile.
        group: n-tiles that are neighbours in the order of tiles.
        full_tiles: data-parallel tiles, the first ones.
        streams: streams that the other tiles' steps lie on.
        ranges: K-ranges of each stream.
        grid: thread blocks.
        pairs: tiles of CTA pairs, the last ones; then there are no streams.
        row_tiles: 64-row tiles of a tile, 2 or 3; with 3 there are no streams.
        shares_tokens: whether two neighbouring blocks take two neighbouring m-tiles of an n-tile at a time,
            and each copies half of its tokens to both; then all tiles are full.
    """

    shape: GemmShape
    block_n: int
    group: int
    full_tiles: int
    streams: int
    ranges: int
    grid: int
    pairs: int = 0
    row_tiles: int = 2
    shares_tokens: bool = False

    @property
    def m_tiles(self) -> int:
        """Tiles along the weight's rows."""
        return -(-self.shape.rows // (ROW_TILE * self.row_tiles))

    @property
    def n_tiles(self) -> int:
        """Tiles along the tokens."""
        return -(-self.shape.tokens // self.block_n)

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.m_tiles * self.n_tiles

    @property
    def stream_tiles(self) -> int:
        """Tiles of a stream."""
        return (self.tiles - self.full_tiles - self.pairs) // self.streams

    @property
    def stream_steps(self) -> int:
        """Steps of a stream."""
        return self.stream_tiles * self.shape.k_tiles

    @property
    def is_split(self) -> bool:
        """Whether partial sums of a tile go through memory."""
        return self.ranges > 0 and self.stream_tiles % self.ranges > 0

    @property
    def partial_sums(self) -> int:
        """Float32 that partial sums take: two slots a block, of a tile of two row tiles."""
        return self.grid * 2 * BLOCK_M * self.block_n if self.is_split else 0


@dataclass(frozen=True, slots=True)
class GemmTile:
    """Steps of a tile that one block computes; ``stream_index`` is the tile's in its stream, -1 of others."""

    m_tile: int
    n_tile: int
    k_begin: int
    k_end: int
    stream_index: int


def iter_tiles(plan: GemmPlan, block: int) -> Iterator[GemmTile]:
    """Yield the tiles of a thread block, in order: the reference implementation of ``TileScheduler``."""
    k_tiles, stream, of_stream = plan.shape.k_tiles, block % plan.streams, block // plan.streams
    if of_stream < plan.ranges:
        step, end = (plan.stream_steps * bound // plan.ranges for bound in (of_stream, of_stream + 1))
        while step < end:
            index, k_begin = divmod(step, k_tiles)
            k_end = min(k_tiles, k_begin + end - step)
            yield GemmTile(
                *_tile(plan, plan.full_tiles + index * plan.streams + stream), k_begin, k_end, index
            )
            step += k_end - k_begin
    together = 2 if plan.shares_tokens else 1
    for index in range(block // together, plan.full_tiles // together, plan.grid // together):
        m_tile, n_tile = _tile(plan, index)
        yield GemmTile(m_tile * together + block % together, n_tile, 0, k_tiles, -1)
    if block // 2 < plan.pairs:
        half = (k_tiles // 2, k_tiles) if block % 2 else (0, k_tiles // 2)
        yield GemmTile(*_tile(plan, plan.full_tiles + block // 2), *half, -1)


def split_owners(plan: GemmPlan, stream_index: int) -> tuple[int, int]:
    """Return the first and last range that contribute to a tile of a stream: ``Partials``' reference."""
    begin, end = stream_index * plan.shape.k_tiles, (stream_index + 1) * plan.shape.k_tiles
    return ((begin + 1) * plan.ranges - 1) // plan.stream_steps, (end * plan.ranges - 1) // plan.stream_steps


def _tile(plan: GemmPlan, index: int) -> tuple[int, int]:
    """Return the m-tile (or two m-tiles that share their tokens) and n-tile of a tile's number."""
    m_tiles = plan.m_tiles // 2 if plan.shares_tokens else plan.m_tiles
    first = index // (plan.group * m_tiles) * plan.group
    within = index - first * m_tiles
    wide = min(plan.group, plan.n_tiles - first)
    return within // wide, first + within % wide


def stage_bytes(block_n: int, row_tiles: int = 2) -> int:
    """Return the bytes of one step in shared memory: 64 by 64 blocks of weights, and the tokens."""
    return (row_tiles * ROW_TILE + block_n) * BLOCK_K * 2


def staging_bytes(block_n: int, row_tiles: int = 2) -> int:
    """Return the bytes in which an epilogue transposes results, at most."""
    buffers = 4 if block_n == BLOCK_N[-1] else 2  # epilogue.cuh's kBuffers
    return buffers * row_tiles * min(block_n, 32) * ROW_TILE * 2


def stages(block_n: int, shared_bytes: int, row_tiles: int = 2) -> int:
    """Return the pipeline stages of a block that may have ``shared_bytes`` of shared memory."""
    spare_bytes = shared_bytes - _STATIC_BYTES - staging_bytes(block_n, row_tiles)
    return min(_MAX_STAGES, spare_bytes // stage_bytes(block_n, row_tiles))
