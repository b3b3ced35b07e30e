"""Attention over quantized caches on the GPU against the reference: decode, prompts in rounds, mixed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_plan.kv_formats.layers import KV_FORMATS  # noqa: E402
from wisp_runtime.batch import Batch  # noqa: E402
from wisp_runtime.ops.cpu.ops import CpuOps  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device, to_host_float32  # noqa: E402
from wisp_runtime.ops.cuda.ops import CudaOps  # noqa: E402
from wisp_runtime.ops.protocol.attention import KvCache, KvEncoding  # noqa: E402

QUANTIZED = [kv_format for kv_format in KV_FORMATS.values() if kv_format.is_quantized]
TB = 16
ROUNDING = (
    2**-6
)  # queries, decoded values, probabilities and results are rounded to bf16; of rotated ones twice
NO = np.zeros(0, np.int32)
MODELS = [
    *((32, 8, 128), (14, 2, 64), (5, 1, 80), (6, 2, 96)),
    *((12, 4, 192), (8, 1, 256), (16, 1, 128), (4, 2, 112)),
]


@pytest.fixture(scope="module")
def ops(device):
    return CudaOps(device)


def make(random, kv_format, heads, chunks):
    """Return queries, caches, the batch and the encoding of chunks of (queries, context)."""
    query_heads, kv_heads, size = heads
    counts = [-(-context // TB) for _, context in chunks]
    order = random.permutation(sum(counts) + 1).astype(np.int32)
    tables, used = np.zeros((len(chunks), max(counts)), np.int32), 0
    for row, count in enumerate(counts):
        tables[row, :count] = order[used : used + count]
        used += count
    encoding = KvEncoding(kv_format, 0.5, 2.0) if kv_format.has_layer_scale else KvEncoding(kv_format)
    shape = len(order), kv_heads, TB, kv_format.row_bytes(size)
    caches = [np.full(shape, 0xFF, np.uint8) for _ in range(2)]  # NaN where nothing is written
    ops = CpuOps(threads=1)
    for row, (_, context) in enumerate(chunks):
        at = np.arange(context)
        slots = tables[row, at // TB].astype(np.int64) * TB + at % TB
        k, v = (random.standard_normal((context, kv_heads, size), np.float32) for _ in range(2))
        ops.write_kv(k, v, slots, *caches, encoding)
    starts = (0, *np.cumsum([queries for queries, _ in chunks]).tolist())
    contexts = tuple(context for _, context in chunks)
    host = np.array(starts, np.int32), np.array(contexts, np.int32), tables
    q = (random.standard_normal((starts[-1], query_heads, size), np.float32) * 3).astype(BF16)
    return q, caches, Batch(NO, NO, NO, *host, NO, starts, contexts), encoding


def check(ops, made, window=None, sinks=None):
    q, caches, batch, encoding = made
    options = {"scale": q.shape[2] ** -0.5, "window": window, "sinks": sinks}
    expected = CpuOps(threads=1).paged_attention(
        q.astype(np.float32), KvCache(*caches, encoding), batch, **options
    )
    arrays = ("query_starts", "context_lengths", "block_tables")
    there = replace(batch, **{name: to_device(getattr(batch, name)) for name in arrays})
    cache = KvCache(*map(to_device, caches), encoding)
    options["sinks"] = None if sinks is None else to_device(sinks)
    found = to_host_float32(ops.paged_attention(to_device(q), cache, there, **options)).reshape(
        expected.shape
    )
    scale = np.abs(expected).max(axis=(1, 2), keepdims=True)
    error = np.abs(found - expected) / scale
    limit = ROUNDING * (2 if encoding.format.is_rotated else 1)
    assert error.max() <= limit, f"largest error {error.max():.2e} of a row's largest value"
    again = to_host_float32(ops.paged_attention(to_device(q), cache, there, **options))
    np.testing.assert_array_equal(again.reshape(expected.shape), found)


@pytest.mark.parametrize("kv_format", QUANTIZED, ids=lambda f: f.name)
@pytest.mark.parametrize("heads", MODELS, ids=str)
def test_decode_attention_equals_its_reference(ops, random, kv_format, heads):
    contexts = (1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 100, 257, 600)
    check(ops, make(random, kv_format, heads, [(1, context) for context in contexts]))


@pytest.mark.parametrize("kv_format", QUANTIZED, ids=lambda f: f.name)
@pytest.mark.parametrize("context", [1023, 7900])
def test_one_sequence_is_split_and_reduced(ops, random, kv_format, context):
    check(ops, make(random, kv_format, MODELS[0], [(1, context)]))


@pytest.mark.parametrize("kv_format", QUANTIZED, ids=lambda f: f.name)
@pytest.mark.parametrize("heads", [MODELS[0], MODELS[1], MODELS[2]], ids=str)
def test_prompts_cached_prefixes_and_decodes_mix(ops, random, kv_format, heads):
    check(ops, make(random, kv_format, heads, [(40, 40), (1, 77), (5, 300), (1, 16), (130, 131)]))


@pytest.mark.parametrize("window", [1, 24, 100])
@pytest.mark.parametrize("kv_format", [QUANTIZED[0], QUANTIZED[-1]], ids=lambda f: f.name)
def test_a_window_hides_what_is_older(ops, random, kv_format, window):
    check(ops, make(random, kv_format, (8, 2, 128), [(30, 200), (1, 150), (1, 9), (70, 70)]), window=window)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("kv_format", QUANTIZED, ids=lambda f: f.name)
def test_sinks_count_once_whatever_the_splits(ops, random, kv_format, window):
    sinks = random.uniform(-3, 12, 64).astype(np.float32)
    made = make(random, kv_format, (64, 8, 64), [(40, 40), (1, 7900), (5, 300), (1, 9)])
    check(ops, made, window, sinks)


def test_sequences_that_exceed_the_scratch_cache_are_attended_to_in_rounds(device, random):
    ops = CudaOps(device)
    ops._kv.reserve(20, TB)  # blocks of one sequence of 320 tokens
    made = make(random, KV_FORMATS["turbo4"], (8, 2, 64), [(40, 40), (5, 300), (1, 16), (130, 131), (9, 320)])
    check(ops, made)
