"""Choose a kernel for prefill attention, and split a batch into its work tiles. Pure: NumPy on the host.

A row is a (token, query head) pair of one KV head, so a chunk of n tokens has n * group rows. A work tile is
a tile of rows and the KV tiles that they attend to, for every KV head: ``PrefillWorkTile`` of
``kernels/include/attention/prefill_work_tile.cuh``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wisp_plan.memory.buffers.attention import HOPPER_PREFILL_TILES, WORK_TILE_FIELDS, PrefillTile
from wisp_runtime.errors import ShapeError

Items = np.ndarray[tuple[int, int], np.dtype[np.int32]]

OP = "prefill_attention"
FIELDS = WORK_TILE_FIELDS
"""Of an item: sequence, first query, queries, context, first row, KV tiles from, to, part | parts << 16."""

_WORTH_SPLITTING_TOKENS = 256
"""Joining parts takes about as long as this many tokens: where splitting saves no more, nothing is split."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The queries of one sequence: more than one, the last of its ``context`` tokens."""

    sequence: int
    first_query: int
    queries: int
    context: int


@dataclass(frozen=True, slots=True)
class Tiling:
    """How large a tile is: its rows, and its KV tokens."""

    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Variant:
    """Kernels that differ in the rows of a tile alone; their entries and sizes, as the sources have them.

    Attributes:
        uses_wgmma: Hopper's; otherwise portable.
        head_size: widest head; narrower ones are padded with zeros in shared memory.
        rows: of a tile, ascending; there is a kernel for each.
        tokens: of a KV tile.
    """

    uses_wgmma: bool
    head_size: int
    rows: tuple[int, ...]
    tokens: int

    @property
    def family(self) -> str:
        """Return what the names of its kernels begin with."""
        return f"{OP}_wgmma" if self.uses_wgmma else OP

    def entry(self, rows: int) -> str:
        """Return the name of the kernel."""
        return f"{self.family}_d{self.head_size}_r{rows}"

    def threads(self, rows: int) -> int:
        """Return the threads of a block: two a row, and a warpgroup that copies."""
        return 2 * rows + (128 if self.uses_wgmma else 0)

    def shared_bytes(self, rows: int) -> int:
        """Return the dynamic shared memory of a block, as ``Tile::kSharedBytes`` of the kernels says."""
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


def choose(variants: Sequence[Variant], head_size: int, shared_bytes: int) -> Variant:
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


def chunks_of(query_starts: Sequence[int], contexts: Sequence[int], least: int = 2) -> list[Chunk]:
    """Return the sequences of a batch with at least ``least`` queries; the others are decode's."""
    return [
        Chunk(sequence, start, end - start, context)
        for sequence, (start, end, context) in enumerate(
            zip(query_starts, query_starts[1:], contexts, strict=False)
        )
        if end - start >= least and context > 0
    ]


def rows_of_tile(chunks: Sequence[Chunk], group: int, choices: Sequence[int]) -> int:
    """Choose the rows of a tile among ``choices``, ascending: few where every chunk fits into few."""
    most = max(chunk.queries for chunk in chunks) * group
    return next((rows for rows in choices if most <= rows), choices[-1])


def plan(
    chunks: Sequence[Chunk],
    tiling: Tiling,
    *,
    group: int,
    kv_heads: int,
    window: int,
    workers: int,
    splits: bool = True,
) -> Items:
    """List the work items, longest first.

    Where all items run at once and some are long, these are split along KV: their parts are neighbours in
    the list, and all items together are still at most ``workers`` thread blocks.

    Args:
        chunks: at least one.
        tiling: the kernel's.
        group: query heads of a KV head.
        kv_heads: Hkv, thread blocks an item.
        splits: whether items may be split at all.
        window: tokens that a query sees, its own included.
        workers: thread blocks that surely run at once.

    Returns:
        ``[items, FIELDS]`` int32.
    """
    whole = np.concatenate([_tiles(chunk, tiling, group, window) for chunk in chunks])
    lengths = whole[:, 6] - whole[:, 5]
    whole = whole[np.argsort(-lengths, kind="stable")]
    lengths = whole[:, 6] - whole[:, 5]
    limit = _longest_part(lengths, workers // kv_heads)
    if not splits or (int(lengths[0]) - limit) * tiling.tokens <= _WORTH_SPLITTING_TOKENS:
        return whole
    return _split(whole, -(-lengths // limit))


def _tiles(chunk: Chunk, tiling: Tiling, group: int, window: int) -> Any:
    """Return the unsplit items of one chunk."""
    rows = chunk.queries * group
    first = np.arange(0, rows, tiling.rows)
    before = chunk.context - chunk.queries
    lowest = np.maximum(before + first // group - window + 1, 0)
    highest = before + np.minimum(first + tiling.rows - 1, rows - 1) // group
    items = np.empty((len(first), FIELDS), np.int32)
    items[:, :4] = chunk.sequence, chunk.first_query, chunk.queries, chunk.context
    items[:, 4], items[:, 5], items[:, 6] = first, lowest // tiling.tokens, highest // tiling.tokens + 1
    items[:, 7] = 1 << 16
    return items


def _longest_part(lengths: Any, room: int) -> int:
    """Return the least number of KV tiles that a part can be cut to with at most ``room`` parts in all."""
    low, high = 1, int(lengths[0])
    while low < high:
        middle = (low + high) // 2
        if int((-(-lengths // middle)).sum()) <= room:
            high = middle
        else:
            low = middle + 1
    return low


def _split(whole: Any, parts: Any) -> Items:
    """Cut item i into ``parts[i]`` parts of about the same length."""
    items: Items = np.repeat(whole, parts, axis=0)
    count = np.repeat(parts, parts)
    part = np.arange(len(items)) - np.repeat(np.cumsum(parts) - parts, parts)
    begin, length = items[:, 5].copy(), items[:, 6] - items[:, 5]
    items[:, 5] = begin + length * part // count
    items[:, 6] = begin + length * (part + 1) // count
    items[:, 7] = part | count << 16
    return items
