"""Choose a kernel for prefill attention, and split a batch into its work tiles. Pure: NumPy on the host.

A row is a (token, query head) pair of one KV head, so a chunk of n tokens has n * group rows. A work tile is
a tile of rows and the KV tiles that they attend to, for every KV head: ``PrefillWorkTile`` of
``kernels/include/attention/prefill_work_tile.cuh``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wisp_plan.memory.buffers.attention import (
    HOPPER_PREFILL_TILES,
    WORK_TILE_FIELDS,
    PrefillKind,
    PrefillTile,
)
from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError

WorkTiles = np.ndarray[tuple[int, int], np.dtype[np.int32]]

OP = "prefill_attention"
# Fields of a work tile: sequence, first query, queries, context, first row, first and end KV tile, and
# split | splits << 16.

_COMBINE_TOKENS = 256
"""Combining splits takes as long as about so many tokens: where splitting saves less, nothing is split."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Queries of one sequence: more than one, the last of its ``context`` tokens."""

    sequence: int
    first_query: int
    queries: int
    context: int


@dataclass(frozen=True, slots=True)
class Tiling:
    """Size of a tile: its rows, and its KV tokens."""

    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Variant:
    """Kernels that differ in the rows of a tile alone, with their entries and sizes.

    Attributes:
        uses_wgmma: whether they are Hopper's; otherwise portable.
        head_size: widest head; narrower ones are padded with zeros in shared memory.
        rows: rows of a tile, ascending; there is a kernel for each.
        tokens: tokens of a KV tile.
    """

    uses_wgmma: bool
    head_size: int
    rows: tuple[int, ...]
    tokens: int

    @property
    def family(self) -> str:
        """Return the prefix of its kernels' names."""
        return f"{OP}_wgmma" if self.uses_wgmma else OP

    def entry(self, rows: int) -> str:
        """Return the name of the kernel."""
        return f"{self.family}_d{self.head_size}_r{rows}"

    def threads(self, rows: int) -> int:
        """Return the threads of a block: two a row, and a warpgroup that copies."""
        return 2 * rows + (128 if self.uses_wgmma else 0)

    def shared_bytes(self, rows: int) -> int:
        """Return the dynamic shared memory of a block, ``Tile::kSharedBytes`` of the kernels."""
        if not self.uses_wgmma:
            chunks = self.head_size // 8
            return (rows + 4 * self.tokens) * 16 * (chunks if chunks % 8 == 0 else chunks + 1)
        stages = 3 if rows == 64 or self.head_size == 64 else 2
        buffers = 2 if self.head_size <= 128 else 1
        tiles = buffers * rows + 2 * stages * self.tokens
        return 1024 + tiles * 2 * self.head_size + 8 * (4 * stages + 2 * buffers)


PORTABLE = (
    *(Variant(False, size, (64, 128), 64) for size in (64, 80, 96, 128)),
    *(Variant(False, size, (64,), 32) for size in (192, 256)),
)
WGMMA = tuple(
    Variant(True, size, (64, rows), 128 if size <= 128 else 64) for size, rows in HOPPER_PREFILL_TILES
)


def largest_tiles(variants: Sequence[Variant], shared_bytes: int) -> tuple[PrefillTile, ...]:
    """Return the largest tile of each of ``variants`` that fits ``shared_bytes`` of shared memory."""
    fitting = ((variant, _fitting(variant, shared_bytes)) for variant in variants)
    return tuple(PrefillTile(variant.head_size, rows[-1]) for variant, rows in fitting if rows)


def _fitting(variant: Variant, shared_bytes: int) -> tuple[int, ...]:
    return tuple(rows for rows in variant.rows if variant.shared_bytes(rows) <= shared_bytes)


def select_variant(variants: Sequence[Variant], head_size: int, shared_bytes: int) -> Variant:
    """Return the narrowest of ``variants`` that holds ``head_size``, with the tiles that fit shared memory.

    Raises:
        ShapeError: none does.
    """
    for variant in variants:
        if variant.head_size >= head_size and (fitting := _fitting(variant, shared_bytes)):
            return replace(variant, rows=fitting)
    raise ShapeError(
        f"heads of {head_size} with {shared_bytes} bytes of shared memory: there is no prefill kernel"
    )


def kind_of(q: Array, keys: Array, window: int | None) -> PrefillKind:
    """Return the kind of a layer with queries ``[N, Hq, Dh]`` and keys ``[P, Hkv, Tb, …]``."""
    return PrefillKind(q.shape[1], keys.shape[1], q.shape[2], window)


def place(kinds: Mapping[Any, object], kind: PrefillKind) -> int:
    """Return the number of a kind's buffers: its position in ``kinds``, or behind them."""
    return next((number for number, known in enumerate(kinds) if known == kind), len(kinds))


def chunks_of(query_starts: Sequence[int], contexts: Sequence[int], min_queries: int = 2) -> list[Chunk]:
    """Return the sequences of a batch with at least ``min_queries`` queries; the others are decode's."""
    return [
        Chunk(sequence, start, end - start, context)
        for sequence, (start, end, context) in enumerate(
            zip(query_starts, query_starts[1:], contexts, strict=False)
        )
        if end - start >= min_queries and context > 0
    ]


def rows_of_tile(chunks: Sequence[Chunk], group: int, choices: Sequence[int]) -> int:
    """Choose the rows of a tile among ``choices``, ascending: few where every chunk fits into few."""
    max_rows = max(chunk.queries for chunk in chunks) * group
    return next((rows for rows in choices if max_rows <= rows), choices[-1])


def plan(
    chunks: Sequence[Chunk],
    tiling: Tiling,
    *,
    group: int,
    kv_heads: int,
    window: int,
    sm_count: int,
    splits: bool = True,
) -> WorkTiles:
    """List the work tiles, longest first.

    Where all of them run at once and some are long, these are split along KV: their splits are neighbours in
    the list, and all work tiles together are still at most ``sm_count`` thread blocks.

    Args:
        chunks: at least one.
        tiling: tile of the kernel.
        group: query heads of a KV head.
        kv_heads: Hkv, thread blocks a work tile.
        splits: whether work tiles may be split at all.
        window: tokens that a query attends to, its own included.
        sm_count: SMs, so thread blocks that surely run at once.

    Returns:
        ``[tiles, WORK_TILE_FIELDS]`` int32.
    """
    tiles = np.concatenate([_tiles(chunk, tiling, group, window) for chunk in chunks])
    lengths = tiles[:, 6] - tiles[:, 5]
    tiles = tiles[np.argsort(-lengths, kind="stable")]
    lengths = tiles[:, 6] - tiles[:, 5]
    limit = _longest_split(lengths, sm_count // kv_heads)
    if not splits or (int(lengths[0]) - limit) * tiling.tokens <= _COMBINE_TOKENS:
        return tiles
    return _split(tiles, -(-lengths // limit))


def _tiles(chunk: Chunk, tiling: Tiling, group: int, window: int) -> Any:
    """Return the unsplit work tiles of one chunk."""
    rows = chunk.queries * group
    first = np.arange(0, rows, tiling.rows)
    before = chunk.context - chunk.queries
    lowest = np.maximum(before + first // group - window + 1, 0)
    highest = before + np.minimum(first + tiling.rows - 1, rows - 1) // group
    tiles = np.empty((len(first), WORK_TILE_FIELDS), np.int32)
    tiles[:, :4] = chunk.sequence, chunk.first_query, chunk.queries, chunk.context
    tiles[:, 4], tiles[:, 5], tiles[:, 6] = first, lowest // tiling.tokens, highest // tiling.tokens + 1
    tiles[:, 7] = 1 << 16
    return tiles


def _longest_split(lengths: Any, max_splits: int) -> int:
    """Return the smallest bound on a split's KV tiles with at most ``max_splits`` splits in all."""
    low, high = 1, int(lengths[0])
    while low < high:
        middle = (low + high) // 2
        if int((-(-lengths // middle)).sum()) <= max_splits:
            high = middle
        else:
            low = middle + 1
    return low


def _split(tiles: Any, splits: Any) -> WorkTiles:
    """Split work tile i into ``splits[i]`` of about the same length."""
    result: WorkTiles = np.repeat(tiles, splits, axis=0)
    count = np.repeat(splits, splits)
    split = np.arange(len(result)) - np.repeat(np.cumsum(splits) - splits, splits)
    begin, length = result[:, 5].copy(), result[:, 6] - result[:, 5]
    result[:, 5] = begin + length * split // count
    result[:, 6] = begin + length * (split + 1) // count
    result[:, 7] = split | count << 16
    return result
