"""The work items of prefill attention: every row meets every token that it sees, longest items first."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wisp_plan.memory.buffers.attention import WORK_TILE_FIELDS, max_work_tiles
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cuda.attention.prefill_plan import (
    PORTABLE,
    WGMMA,
    Chunk,
    Tiling,
    chunks_of,
    plan,
    rows_of_tile,
    select_variant,
)

ALL = 1 << 30
SMS = 132


def seen(items: np.ndarray, tiling: Tiling, group: int) -> dict[tuple[int, int], list[int]]:
    """Return the KV tiles that each (sequence, row of the chunk) attends to, in the order of the splits."""
    tiles: dict[tuple[int, int], list[int]] = {}
    for sequence, _, queries, _, first, begin, end, split in items.tolist():
        assert begin < end
        assert split & 0xFFFF < split >> 16
        for row in range(first, min(first + tiling.rows, queries * group)):
            tiles.setdefault((sequence, row), []).extend(range(begin, end))
    return tiles


CASES = [
    [(2, 2)],
    [(300, 300)],
    [(16, 7900)],  # split
    [(64, 5000), (3, 3)],  # split, beside one that is not worth it
    [(1, 50), (100, 164), (1, 1), (129, 1000)],  # decodes between
    [(1000, 1000), (1000, 9000)],
]


@pytest.mark.parametrize("sizes", CASES)
@pytest.mark.parametrize("tiling", [Tiling(64, 32), Tiling(64, 128), Tiling(128, 128)])
@pytest.mark.parametrize(("group", "kv_heads"), [(1, 1), (4, 8), (7, 2)])
@pytest.mark.parametrize("window", [1, 100, ALL])
def test_every_row_attends_to_each_visible_tile_once(sizes, tiling, group, kv_heads, window):
    starts = (0, *np.cumsum([queries for queries, _ in sizes]).tolist())
    contexts = [context for _, context in sizes]
    chunks = chunks_of(starts, contexts)
    items = plan(chunks, tiling, group=group, kv_heads=kv_heads, window=window, sm_count=SMS)
    assert items.dtype == np.int32
    assert items.shape[1] == WORK_TILE_FIELDS
    tiles = seen(items, tiling, group)
    assert len(tiles) == sum(chunk.queries * group for chunk in chunks)
    for chunk in chunks:
        for row in range(chunk.queries * group):
            position = chunk.context - chunk.queries + row // group
            met = tiles[chunk.sequence, row]
            needed = range(max(0, position - window + 1) // tiling.tokens, position // tiling.tokens + 1)
            assert met == list(range(met[0], met[-1] + 1))
            assert set(needed) <= set(met)


def test_only_sequences_of_several_queries_are_planned():
    assert chunks_of((0, 1, 5, 6, 8), (9, 4, 1, 300)) == [Chunk(1, 1, 4, 4), Chunk(3, 6, 2, 300)]


def test_the_longest_come_first():
    items = plan([Chunk(0, 0, 8192, 8192)], Tiling(128, 128), group=4, kv_heads=8, window=ALL, sm_count=SMS)
    lengths = items[:, 6] - items[:, 5]
    assert len(items) == 256
    assert lengths[0] == 64
    assert (np.diff(lengths) <= 0).all()


@pytest.mark.parametrize(
    ("sizes", "splits"),
    [
        ([(16, 7900)], [16]),  # 8 heads x 16 splits are 128 thread blocks
        ([(16, 7900), (16, 7900)], [8, 8]),
        ([(16, 7900), (16, 4000)], [9, 5]),
        ([(512, 512)], [1] * 16),  # 128 thread blocks already
        ([(16, 300)], [1]),  # 3 tiles: joining costs more than it saves
        ([(8192, 8192)], [1] * 256),
    ],
)
def test_long_work_is_split_while_all_splits_run_at_once(sizes, splits):
    starts = (0, *np.cumsum([queries for queries, _ in sizes]).tolist())
    chunks = chunks_of(starts, [context for _, context in sizes])
    tiling = Tiling(rows_of_tile(chunks, 4, (64, 128)), 128)
    items = plan(chunks, tiling, group=4, kv_heads=8, window=ALL, sm_count=SMS)
    assert (items[items[:, 7] & 0xFFFF == 0, 7] >> 16).tolist() == splits
    if max(splits) > 1:
        assert 8 * len(items) <= SMS
        for first in np.flatnonzero(items[:, 7] & 0xFFFF == 0):  # splits of a tile are neighbours, in order
            count = items[first, 7] >> 16
            assert (items[first : first + count, 7] & 0xFFFF).tolist() == list(range(count))


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize(("tokens", "sequences"), [(2, 1), (600, 9), (8192, 256)])
@pytest.mark.parametrize(("group", "kv_heads"), [(1, 32), (4, 8), (7, 4), (8, 1)])
def test_no_step_has_more_work_tiles_than_were_reserved(rows, tokens, sequences, group, kv_heads):
    most = max_work_tiles(tokens, sequences, rows, group=group, kv_heads=kv_heads, sm_count=SMS)
    random = np.random.default_rng(tokens)
    for count in {1, min(sequences, tokens // 2), min(3, sequences, tokens // 2)}:
        boundaries = np.sort(random.choice(np.arange(1, tokens // 2), count - 1, replace=False)) * 2
        queries = np.diff((0, *boundaries, tokens)).tolist()
        for prefix in (0, 9000):
            starts = (0, *np.cumsum(queries).tolist())
            chunks = chunks_of(starts, [prefix + n for n in queries])
            tiling = Tiling(rows_of_tile(chunks, group, (64, rows)), 128)
            items = plan(chunks, tiling, group=group, kv_heads=kv_heads, window=ALL, sm_count=SMS)
            assert len(items) <= most


@st.composite
def steps(draw):
    """Return the most tokens and sequences of a step, and the queries of one that is no larger."""
    sequences = draw(st.integers(1, 64))
    tokens = draw(st.integers(sequences, 4 * sequences))
    boundaries = draw(st.sets(st.integers(1, tokens), max_size=sequences))
    return tokens, sequences, np.diff((0, *sorted(boundaries | {tokens})[-sequences:])).tolist()


@given(
    step=steps(),
    prefix=st.sampled_from([0, 9000]),
    rows=st.sampled_from([64, 128]),
    group=st.integers(1, 16),
    kv_heads=st.sampled_from([1, 2, 8]),
    splits=st.booleans(),
)
@example(step=(105, 55, [1] * 53 + [26, 26]), prefix=0, rows=128, group=5, kv_heads=8, splits=False)
def test_no_step_of_short_prompts_has_more_work_tiles_than_were_reserved(
    step, prefix, rows, group, kv_heads, splits
):
    """In deterministic mode a chunk of one token is a prompt's too, in a tile of the largest kind."""
    tokens, sequences, queries = step
    starts = (0, *np.cumsum(queries).tolist())
    chunks = chunks_of(starts, [prefix + n for n in queries], min_queries=2 if splits else 1)
    if not chunks:
        return
    tiling = Tiling(rows_of_tile(chunks, group, (64, rows)) if splits else rows, 128)
    sizes = {"group": group, "kv_heads": kv_heads}
    items = plan(chunks, tiling, window=ALL, splits=splits, sm_count=SMS, **sizes)
    assert len(items) <= max_work_tiles(tokens, sequences, rows, sm_count=SMS, **sizes)


@pytest.mark.parametrize(
    ("variants", "head_size", "shared_bytes", "entry"),
    [
        (WGMMA, 128, 232448, "prefill_attention_wgmma_d128_r128"),
        (WGMMA, 80, 232448, "prefill_attention_wgmma_d128_r128"),
        (WGMMA, 248, 232448, "prefill_attention_wgmma_d256_r128"),
        (PORTABLE, 8, 101376, "prefill_attention_d64_r128"),
        (PORTABLE, 80, 101376, "prefill_attention_d80_r128"),
        (PORTABLE, 128, 101376, "prefill_attention_d128_r128"),  # what Ada has
        (PORTABLE, 256, 101376, "prefill_attention_d256_r64"),
        (PORTABLE, 128, 90000, "prefill_attention_d128_r64"),
    ],
)
def test_the_narrowest_kernel_that_fits_is_chosen(variants, head_size, shared_bytes, entry):
    variant = select_variant(variants, head_size, shared_bytes)
    assert variant.entry(variant.rows[-1]) == entry
    assert variant.shared_bytes(variant.rows[-1]) <= shared_bytes


def test_heads_wider_than_every_kernel_are_refused():
    with pytest.raises(ShapeError, match="heads of 264"):
        select_variant(WGMMA, 264, 232448)
