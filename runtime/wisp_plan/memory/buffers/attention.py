"""Buffers of attention: its result, partial results of split sequences, and the prefill's work tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wisp_plan.memory.buffers.buffer import Buffer, numbered
from wisp_plan.memory.buffers.kv_cache import KV_SCRATCH, block_runs
from wisp_plan.memory.buffers.widths import widest
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec

DECODE_PARTIAL_ROWS = 16384
"""Partial results of decode attention, one a query head of a part of a sequence."""

PREFILL = "prefill_attention"

WORK_TILE_FIELDS = 8
"""Numbers of a prefill work tile, int32 each."""


class PrefillTile(NamedTuple):
    """Tile of a prefill kernel: the widest head that it takes, and its rows (token, query head)."""

    head_size: int
    rows: int


HOPPER_PREFILL_TILES = tuple(PrefillTile(head_size, 128) for head_size in (64, 128, 192, 256))


class PrefillKind(NamedTuple):
    """Layers that share a step's work tiles.

    Attributes:
        heads, kv_heads, head_size: Hq, Hkv, Dh.
        window: tokens that a query attends to; None: all.
    """

    heads: int
    kv_heads: int
    head_size: int
    window: int | None


def prefill_kinds(spec: ModelSpec) -> tuple[PrefillKind, ...]:
    """Return the kinds of a model's attention layers, each once."""
    mixers = spec.mixers(AttentionSpec)
    return tuple(dict.fromkeys(PrefillKind(m.heads, m.kv_heads, m.head_size, m.window) for m in mixers))


def attention(
    spec: ModelSpec, step: StepSizes, prefill_tiles: Sequence[PrefillTile] = HOPPER_PREFILL_TILES
) -> tuple[Buffer, ...]:
    """Return the result ``[N, Hq Dh]`` and the buffers of decode and prefill attention."""
    return (
        Buffer("attention", (step.max_tokens, widest(spec, "query_size")), "bfloat16"),
        *decode_attention(DECODE_PARTIAL_ROWS, widest(spec, "head_size")),
        decode_arrivals(step.max_sequences, widest(spec, "heads")),
        *prefill_attention(spec, step, prefill_tiles),
    )


def decode_attention(rows: int, head_size: int) -> tuple[Buffer, Buffer]:
    """Return ``rows`` partial results of split sequences, and the maximum and sum of each."""
    return (
        Buffer("decode_attention.partials", (rows, head_size), "float32"),
        Buffer("decode_attention.stats", (rows, 2), "float32"),
    )


def decode_arrivals(sequences: int, heads: int) -> Buffer:
    """Return an arrival counter for each query head of each sequence."""
    return Buffer("decode_attention.arrivals", (sequences * heads,), "uint32", is_zeroed=True)


def prefill_attention(
    spec: ModelSpec, step: StepSizes, tiles: Sequence[PrefillTile] = HOPPER_PREFILL_TILES
) -> tuple[Buffer, ...]:
    """Return the work tiles of the largest step for each kind of layers, and partial results of split ones.

    Those over a quantized cache have buffers of their own, with the runs of blocks that they read, as layers
    of both may be in a model; there every sequence may be a round of its own.

    Args:
        tiles: the kernels' tiles, ascending by head size.
    """
    kinds = prefill_kinds(spec)
    if not kinds:
        return ()
    chosen = [prefill_tile(tiles, kind.head_size) for kind in kinds]

    def count(rounds: int) -> int:
        return max(
            max_work_tiles(
                *(step.max_tokens, step.max_sequences, tile.rows),
                group=kind.heads // kind.kv_heads,
                kv_heads=kind.kv_heads,
                sm_count=step.sm_count,
                rounds=rounds,
            )
            for kind, tile in zip(kinds, chosen, strict=True)
        )

    elements = max(tile.rows * (tile.head_size + 2) for tile in chosen)
    tables = [work_tiles(count(1), numbered(PREFILL, kind)) for kind in range(len(kinds))]
    if step.kv.inner.is_quantized:
        names = [numbered(KV_SCRATCH, kind) for kind in range(len(kinds))]
        tables += [work_tiles(count(step.max_sequences), name) for name in names]
        tables += [block_runs(step.max_sequences, name) for name in names]
    return *tables, *prefill_partials(elements, step.sm_count)


def prefill_tile(tiles: Sequence[PrefillTile], head_size: int) -> PrefillTile:
    """Return the narrowest of ``tiles`` that holds ``head_size``; of wider heads, a tile as wide."""
    fitting = (tile for tile in tiles if tile.head_size >= head_size)
    return next(fitting, PrefillTile(head_size, tiles[-1].rows))


def max_work_tiles(
    tokens: int, sequences: int, rows: int, *, group: int, kv_heads: int, sm_count: int, rounds: int = 1
) -> int:
    """Return how many work tiles of ``rows`` a step of ``tokens`` in at most ``sequences`` can have.

    Those of a round are split into as many as run at once, at most.

    Every chunk may end with a tile that is not full, and in deterministic mode a chunk may be a single token.
    Where few rows suffice, a chunk is one tile of those.
    """
    unsplit = tokens * group // rows + min(sequences, tokens)
    split = sm_count // kv_heads
    return max(unsplit, split, 1) if rounds == 1 else unsplit + rounds * split


def work_tiles(count: int, name: str = PREFILL) -> Buffer:
    """Return the list of a step's work tiles; ``name`` begins the buffer's."""
    return Buffer(f"{name}.work_tiles", (count, WORK_TILE_FIELDS), "int32")


def prefill_partials(elements: int, sm_count: int, name: str = PREFILL) -> tuple[Buffer, Buffer]:
    """Return a partial result of ``elements`` for each SM, with its arrival counter."""
    return (
        Buffer(f"{name}.partials", (sm_count, elements), "float32"),
        Buffer(f"{name}.arrivals", (sm_count,), "uint32", is_zeroed=True),
    )
