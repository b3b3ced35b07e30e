"""Rows of quantized caches on the GPU against their definition in NumPy: stored, read back, rotated."""

from __future__ import annotations

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_plan.kv_formats.layers import KV_FORMATS  # noqa: E402
from wisp_runtime.batch import Batch  # noqa: E402
from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device, to_host_float32  # noqa: E402
from wisp_runtime.ops.cuda.kv_cache.quantized_kv import BlockRuns, QuantizedKv  # noqa: E402
from wisp_runtime.ops.protocol.attention import KvEncoding  # noqa: E402
from wisp_runtime.ops.reference.kv_cache.blocks import QuantizedBlocks, decode_rows, encode_rows  # noqa: E402
from wisp_runtime.ops.reference.kv_cache.hadamard import rotate  # noqa: E402

QUANTIZED = [kv_format for kv_format in KV_FORMATS.values() if kv_format.is_quantized]
HEADS = [(8, 128, 16), (2, 64, 32), (3, 80, 16), (1, 96, 48), (4, 192, 16), (1, 256, 16), (2, 16, 16)]
NO = np.zeros(0, np.int32)
UNWRITTEN = 0xEE


def encoding_of(kv_format) -> KvEncoding:
    return KvEncoding(kv_format, 0.25, 2.0) if kv_format.has_layer_scale else KvEncoding(kv_format)


def stored(device, random, kv_format, heads, block_tokens, size, tokens):
    """Store random rows in slots dealt at random, a few of them nowhere; return rows, slots and the cache."""
    kv, encoding = QuantizedKv(device), encoding_of(kv_format)
    blocks = -(-tokens // block_tokens) + 1
    rows = [(random.standard_normal((tokens, heads, size), np.float32) * 3).astype(BF16) for _ in range(2)]
    rows[0][0, 0, 3] *= 100  # an outlier
    rows[1][-1] = 0
    slots = random.permutation(blocks * block_tokens)[:tokens].astype(np.int64)
    if tokens > 1:
        slots[tokens // 2] = -1
    scratch = kv.scratch(heads, block_tokens, size, blocks)
    for array, host in zip(scratch, rows, strict=True):
        packed = np.zeros((blocks * block_tokens, heads, size), BF16)
        packed[:tokens] = host
        array.set(np.ascontiguousarray(packed.reshape(blocks, block_tokens, heads, size).swapaxes(1, 2)))
    shape = blocks, heads, block_tokens, kv_format.row_bytes(size)
    caches = [to_device(np.full(shape, UNWRITTEN, np.uint8)) for _ in range(2)]
    kv.store(*scratch, to_device(slots), *caches, encoding)
    return kv, rows, slots, caches, encoding


@pytest.mark.parametrize("kv_format", QUANTIZED, ids=lambda f: f.name)
@pytest.mark.parametrize(("heads", "size", "block_tokens"), HEADS)
@pytest.mark.parametrize("tokens", [1, 67])
def test_rows_are_stored_as_they_are_defined(device, random, kv_format, heads, size, block_tokens, tokens):
    _, rows, slots, caches, encoding = stored(device, random, kv_format, heads, block_tokens, size, tokens)
    for host, cache, scale in zip(rows, caches, (encoding.k_scale, encoding.v_scale), strict=True):
        expected = np.full(cache.shape, UNWRITTEN, np.uint8)
        kept = slots >= 0
        QuantizedBlocks(expected, kv_format, size, scale).write(host[kept].astype(np.float32), slots[kept])
        found = cp.asnumpy(cache)
        differs = (found != expected).mean()
        assert differs <= 1e-3, f"{differs:.2%} of the bytes differ"


@pytest.mark.parametrize("kv_format", QUANTIZED, ids=lambda f: f.name)
@pytest.mark.parametrize(("heads", "size", "block_tokens"), HEADS)
def test_blocks_are_read_back_in_any_order(device, random, kv_format, heads, size, block_tokens):
    tokens = 5 * block_tokens
    kv, _, _, caches, encoding = stored(device, random, kv_format, heads, block_tokens, size, tokens)
    noise = [random.integers(0x20, 0x40, cache.shape).astype(np.uint8) for cache in caches]
    for cache, host in zip(caches, noise, strict=True):
        cache.set(host)
    tables = np.array([[3, 1, 0], [2, 4, 0]], np.int32)
    runs = BlockRuns(to_device(np.array([[1, 1, 0, 1], [0, 0, 1, 2]], np.int32)), 3)
    found = kv.read(*caches, to_device(tables), runs, encoding, size)
    for array, host, scale in zip(found, noise, (encoding.k_scale, encoding.v_scale), strict=True):
        taken = QuantizedBlocks(host, kv_format, size, scale).take(np.array([4, 3, 1]))
        expected = rotate(taken) if kv_format.is_rotated else taken
        got = to_host_float32(array)[:3]
        largest = np.abs(expected).max(axis=-1, keepdims=True)
        assert (np.abs(got - expected) / largest).max() <= 2**-7


def test_each_block_of_many_runs_comes_from_its_own(device, random):
    """The search among runs meets every count of them, and runs of one block and of several."""
    kv_format = KV_FORMATS["fp8"]
    kv, encoding, width = QuantizedKv(device), KvEncoding(kv_format), 9
    codes = random.integers(0x20, 0x40, (40, 1, 16, 16)).astype(np.uint8)
    caches = [to_device(codes), to_device(codes[::-1])]
    for count in (1, 2, 3, 7, 8, 33):
        tables = random.integers(0, 40, (count, width)).astype(np.int32)
        columns, lengths = random.integers(0, 3, count), random.integers(1, 6, count)
        firsts = np.cumsum(lengths) - lengths
        runs = np.stack([np.arange(count), columns, firsts, lengths], axis=1).astype(np.int32)
        found = kv.read(
            *caches, to_device(tables), BlockRuns(to_device(runs), int(lengths.sum())), encoding, 16
        )
        blocks = np.concatenate([tables[row, column : column + n] for row, column, _, n in runs.tolist()])
        expected = QuantizedBlocks(codes, kv_format, 16).take(blocks)
        np.testing.assert_array_equal(to_host_float32(found[0])[: len(blocks)], expected)


@pytest.mark.parametrize("kv_format", QUANTIZED, ids=lambda f: f.name)
def test_zeros_stay_zeros_and_nan_stays_nan(device, kv_format):
    kv, rows = QuantizedKv(device), np.zeros((1, 1, 16, 64), BF16)
    rows[0, 0, 3, 5] = np.nan
    k, v = kv.scratch(1, 16, 64, 1)
    for array in (k, v):
        array[:1].set(rows)
    caches = [to_device(np.zeros((1, 1, 16, kv_format.row_bytes(64)), np.uint8)) for _ in range(2)]
    encoding = encoding_of(kv_format)
    kv.store(k, v, to_device(np.arange(16, dtype=np.int64)), *caches, encoding)
    table = to_device(np.zeros((1, 1), np.int32))
    runs = BlockRuns(to_device(np.array([[0, 0, 0, 1]], np.int32)), 1)
    found = to_host_float32(kv.read(*caches, table, runs, encoding, 64)[0])
    assert np.isnan(found[0, 0, 3]).any()
    np.testing.assert_array_equal(np.delete(found[0, 0], 3, axis=0), 0)
    codes, scales = encode_rows(kv_format, np.zeros((1, 64), np.float32), 1.0)
    np.testing.assert_array_equal(decode_rows(kv_format, codes, scales, 1.0), 0)


@pytest.mark.parametrize(("heads", "size"), [(32, 128), (14, 64), (5, 80), (6, 96), (3, 192), (2, 256)])
def test_heads_of_decode_tokens_are_rotated_in_place(device, random, heads, size):
    starts = np.array([0, 1, 4, 5, 6], np.int32)
    x = random.standard_normal((6, heads + 2, size), np.float32).astype(BF16)
    array = to_device(x)
    batch = Batch(NO, NO, NO, to_device(starts), NO, NO, NO, (), ())
    QuantizedKv(device).rotate(array[:, 1 : heads + 1], heads, size, batch)
    found, expected = to_host_float32(array), x.astype(np.float32)
    for row in (0, 4, 5):
        expected[row, 1 : heads + 1] = rotate(expected[row, 1 : heads + 1])
    assert np.abs(found - expected).max() <= 2**-7 * np.abs(expected).max()
    np.testing.assert_array_equal(found[[1, 2, 3]], expected[[1, 2, 3]])
    np.testing.assert_array_equal(found[:, [0, -1]], expected[:, [0, -1]])


def test_caches_that_the_kernels_do_not_take_are_refused(device):
    kv, encoding = QuantizedKv(device), KvEncoding(KV_FORMATS["fp8"])
    slots = to_device(np.zeros(1, np.int64))
    for heads, block_tokens, size, wanted in ((2, 8, 64, "multiple of 16"), (2, 16, 40, "Dh is 40")):
        k, v = kv.scratch(heads, block_tokens, size, 1)
        caches = [to_device(np.zeros((1, heads, block_tokens, size), np.uint8)) for _ in range(2)]
        with pytest.raises(ShapeError, match=wanted):
            kv.store(k, v, slots, *caches, encoding)
    k, v = kv.scratch(2, 16, 64, 1)
    with pytest.raises(ShapeError, match="keys"):
        kv.store(k, v, slots, *[to_device(np.zeros((1, 2, 16, 63), np.uint8)) for _ in range(2)], encoding)
