"""Paged attention against attention query by query, over every way to split a batch into sequences."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from wisp_runtime.batch import Batch
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cpu import threads as threads_of_ops
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.protocol.attention import KvCache
from wisp_runtime.ops.reference import attention

RANDOM = np.random.default_rng(4)
OPS = CpuOps(threads=1)
TB = 4


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def batch_of(chunks: list[tuple[int, int]], blocks: int) -> Batch:
    """Make a batch of (queries, context) chunks with blocks anywhere among ``blocks``."""
    starts = (0, *np.cumsum([queries for queries, _ in chunks]).tolist())
    contexts = tuple(context for _, context in chunks)
    width = max(-(-context // TB) for context in contexts)
    order = RANDOM.permutation(blocks)[: width * len(chunks)].reshape(len(chunks), width).astype(np.int32)
    unused = np.zeros(0, np.int32)
    arrays = dict.fromkeys(("tokens", "positions", "slots", "logit_rows"), unused)
    return Batch(
        **arrays,
        query_starts=np.array(starts, np.int32),
        context_lengths=np.array(contexts, np.int32),
        block_tables=order,
        query_starts_host=starts,
        context_lengths_host=contexts,
    )


def written_out(q, keys, values, batch, scale, window, sinks=None):
    """Attention as its formula says, in float64, a query and a head at a time."""
    out = np.zeros(q.shape)
    group = q.shape[1] // keys.shape[1]
    for row, context in enumerate(batch.context_lengths_host):
        start, end = batch.query_starts_host[row : row + 2]
        places = [(batch.block_tables[row][t // TB], t % TB) for t in range(context)]
        for n in range(start, end):
            position = context - (end - n)
            first = 0 if window is None else max(0, position - window + 1)
            for head in range(q.shape[1]):
                seen = [(keys[b, head // group, t], values[b, head // group, t]) for b, t in places]
                k, v = (np.array(part, np.float64) for part in zip(*seen[first : position + 1], strict=True))
                scores = k @ q[n, head].astype(np.float64) * scale
                sink = -np.inf if sinks is None else float(sinks[head])
                highest = max(scores.max(), sink)
                weights = np.exp(scores - highest)
                out[n, head] = weights @ v / (weights.sum() + np.exp(sink - highest))
    return out


CASES = [
    [(1, 1)],  # the first token of all
    [(1, 9)],  # a decode
    [(1, 8)],  # a decode that fills its block
    [(5, 5)],  # a prompt
    [(5, 14)],  # a later chunk, or the tail behind a cached prefix
    [(1, 3), (1, 17), (1, 4)],  # decodes of different lengths
    [(6, 6), (1, 13), (3, 10), (1, 1)],  # all kinds mixed
    [(40, 40)],  # more rows than go block by block
]


@pytest.mark.parametrize("chunks", CASES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (6, 2), (9, 3)])
@pytest.mark.parametrize("window", [None, 1, 4, 7, 1000])
def test_every_query_sees_its_own_past(chunks, heads, kv_heads, window):
    batch = batch_of(chunks, blocks=64)
    keys, values = random(64, kv_heads, TB, 8), random(64, kv_heads, TB, 8)
    q = random(batch.query_starts_host[-1], heads, 8)
    actual = OPS.paged_attention(q, KvCache(keys, values), batch, scale=0.3, window=window)
    np.testing.assert_allclose(actual, written_out(q, keys, values, batch, 0.3, window), atol=3e-6)


@pytest.mark.parametrize("chunks", CASES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
@pytest.mark.parametrize("window", [None, 1, 7])
@pytest.mark.parametrize("raised", [0.0, 60.0, -60.0])  # 60: a sink that takes all but e-26 of each head
def test_a_sink_takes_its_share_of_the_softmax_and_has_no_value(chunks, heads, kv_heads, window, raised):
    batch = batch_of(chunks, blocks=64)
    keys, values = random(64, kv_heads, TB, 8), random(64, kv_heads, TB, 8)
    q, sinks = random(batch.query_starts_host[-1], heads, 8), random(heads) + np.float32(raised)
    actual = OPS.paged_attention(q, KvCache(keys, values), batch, scale=0.3, window=window, sinks=sinks)
    expected = written_out(q, keys, values, batch, 0.3, window, sinks)
    np.testing.assert_allclose(actual, expected, atol=3e-6, rtol=1e-5)


def test_sinks_of_other_heads_are_refused():
    keys, q = random(64, 2, TB, 8), random(1, 4, 8)
    with pytest.raises(ShapeError):
        OPS.paged_attention(
            q, KvCache(keys, keys), batch_of([(1, 3)], 64), scale=1.0, window=None, sinks=random(2)
        )


@pytest.mark.parametrize("past", [-1, 0, 1])  # a context of window - 1, window and window + 1 tokens
@pytest.mark.parametrize("queries", [1, 3])
def test_a_window_ends_with_the_token_that_is_as_many_back(past, queries):
    window, heads = 8, 4
    context = window + past
    batch = batch_of([(queries, context)], blocks=16)
    keys, q = random(16, heads, TB, 8), random(queries, heads, 8)
    values = np.zeros((16, heads, TB, 8), np.float32)
    values[batch.block_tables[0, 0], :, 0] = 1  # the first token's alone
    actual = OPS.paged_attention(q, KvCache(keys, values), batch, scale=1.0, window=window)
    for row in range(queries):
        position = context - queries + row
        assert (actual[row] > 0).all() == (position < window), f"query at {position}"


TABLES = {
    "one after the other": list(range(3, 15)),
    "backwards": list(range(14, 2, -1)),
    "a long run, then loose ones": [*range(20, 29), 5, 40, 7],
    "two long runs and a gap": [*range(30, 38), 2, *range(50, 59)],
    "a shared prefix, then a run of its own": [*range(8), *range(40, 52)],
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("missing", [0, 1, TB - 1])  # free slots in the last block
@pytest.mark.parametrize("window", [None, 20, 1000])
def test_a_decode_sees_all_its_blocks_wherever_they_lie(monkeypatch, threads, name, missing, window):
    monkeypatch.setattr(threads_of_ops, "_MIN_SECONDS", 1e-12)  # share even this little
    table, keys, values, q = TABLES[name], random(64, 2, TB, 8), random(64, 2, TB, 8), random(2, 6, 8)
    context = len(table) * TB - missing
    for cache in (keys, values):
        cache[table[-1], :, TB - missing :] = np.nan  # what lies beyond the context is anything
    batch = dataclasses.replace(
        batch_of([(1, context), (1, 4)], blocks=64), block_tables=np.array([table, table], np.int32)
    )
    actual = CpuOps(threads).paged_attention(q, KvCache(keys, values), batch, scale=0.3, window=window)
    np.testing.assert_allclose(actual, written_out(q, keys, values, batch, 0.3, window), atol=3e-6)


def test_a_changed_batch_is_planned_anew():
    """The ops remember the last batch's arrays: all layers of a step have the same batch."""
    ops, keys, values, q = CpuOps(1), random(64, 2, TB, 8), random(64, 2, TB, 8), random(1, 4, 8)
    batch = batch_of([(1, 33)], blocks=64)
    mirrored = dataclasses.replace(batch, block_tables=batch.block_tables[:, ::-1].copy())
    for one, window in (
        (batch, None),
        (batch, 5),
        (mirrored, 5),
        (mirrored, None),
        (batch, None),
    ):
        actual = ops.paged_attention(q, KvCache(keys, values), one, scale=0.3, window=window)
        np.testing.assert_allclose(actual, written_out(q, keys, values, one, 0.3, window), atol=3e-6)
    with pytest.raises(ShapeError):
        ops.paged_attention(q, KvCache(keys[:, :, :3], values[:, :, :3]), batch, scale=0.3, window=None)


def test_a_long_chunk_computed_in_tiles_gives_the_same(monkeypatch):
    batch = batch_of([(30, 50), (1, 7)], blocks=64)
    keys, values, q = random(64, 2, TB, 8), random(64, 2, TB, 8), random(31, 4, 8)
    full = OPS.paged_attention(q, KvCache(keys, values), batch, scale=0.3, window=9)
    monkeypatch.setattr(attention, "_MAX_SCORES", 1000)
    tiled = OPS.paged_attention(q, KvCache(keys, values), batch, scale=0.3, window=9)
    np.testing.assert_allclose(tiled, full, atol=1e-6)


def test_slots_beyond_the_context_are_never_read():
    """Slots after the last token hold what earlier sequences left: anything, also NaN."""
    batch = batch_of([(1, 6), (3, 5)], blocks=16)
    keys, values, q = random(16, 2, TB, 8), random(16, 2, TB, 8), random(4, 2, 8)
    clean = OPS.paged_attention(q, KvCache(keys, values), batch, scale=1.0, window=None)
    used = {(batch.block_tables[row][t // TB], t % TB) for row, n in enumerate((6, 5)) for t in range(n)}
    for block in range(16):
        for offset in range(TB):
            if (block, offset) not in used:
                keys[block, :, offset] = values[block, :, offset] = np.nan
    np.testing.assert_array_equal(
        OPS.paged_attention(q, KvCache(keys, values), batch, scale=1.0, window=None), clean
    )


def test_one_sequences_nan_stays_in_its_rows():
    batch = batch_of([(1, 6), (1, 5)], blocks=16)
    keys, values, q = random(16, 2, TB, 8), random(16, 2, TB, 8), random(2, 2, 8)
    q[0] = np.nan
    actual = OPS.paged_attention(q, KvCache(keys, values), batch, scale=1.0, window=None)
    assert np.isnan(actual[0]).all()
    assert np.isfinite(actual[1]).all()


def test_keys_and_values_go_into_their_slots_and_nowhere_else():
    keys, values = np.zeros((5, 2, TB, 8), np.float32), np.zeros((5, 2, TB, 8), np.float32)
    k, v, slots = random(3, 2, 8), random(3, 2, 8), np.array([0, 4 * TB + 3, TB + 2])
    OPS.write_kv(k, v, slots, keys, values)
    for row, (block, offset) in enumerate([(0, 0), (4, 3), (1, 2)]):
        np.testing.assert_array_equal(keys[block, :, offset], k[row])
        np.testing.assert_array_equal(values[block, :, offset], v[row])
    assert np.count_nonzero(keys.any(axis=(1, 3))) == 3


@pytest.mark.parametrize(
    ("heads", "change"),
    [
        (3, {}),  # no multiple of the KV heads
        (4, {"query_starts_host": (0, 3)}),
        (4, {"query_starts_host": (1, 2)}),
        (4, {"context_lengths_host": (1,)}),  # fewer than its queries
        (4, {"context_lengths_host": (13,)}),  # more than its blocks hold
    ],
)
def test_a_batch_that_does_not_fit_the_cache_is_refused(heads, change):
    batch = dataclasses.replace(batch_of([(2, 9)], blocks=8), **change)
    keys = random(8, 2, TB, 8)
    with pytest.raises(ShapeError):
        OPS.paged_attention(random(2, heads, 8), KvCache(keys, keys), batch, scale=1.0, window=None)


def test_a_cache_of_other_heads_is_refused():
    keys, k = random(8, 2, TB, 8), random(1, 3, 8)
    with pytest.raises(ShapeError):
        OPS.write_kv(k, k, np.array([0]), keys, keys)
    with pytest.raises(ShapeError):
        OPS.write_kv(k[:, :2], k, np.array([0]), keys, keys)
    with pytest.raises(ShapeError):
        OPS.write_kv(k[:, :2], k[:, :2], np.array([0, 1]), keys, keys)
