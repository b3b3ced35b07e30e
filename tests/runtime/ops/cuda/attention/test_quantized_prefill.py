"""Plan of prefill attention over a quantized cache: tables once a step, every query's blocks; on a fake GPU.

The fake GPU keeps arrays in host memory, so that what kernels would read can be looked up.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import ml_dtypes
import numpy as np
import pytest
from emulated_gpu import imported

from wisp_plan.kv_formats.layers import KV_FORMATS
from wisp_plan.memory.buffers.attention import max_work_tiles
from wisp_runtime.batch import Batch
from wisp_runtime.ops.protocol.attention import KvEncoding

TB, KV_HEADS, GROUP, SIZE = 16, 2, 4, 64
FP8 = KV_FORMATS["fp8"]
NO = np.zeros(0, np.int32)


class HostArray(np.ndarray):
    """An array with CuPy's pointer and copy from the host."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])

    def set(self, host, stream=None):
        self[...] = host


def on_gpu(array):
    return np.ascontiguousarray(array).view(HostArray)


class Workspace:
    def __init__(self):
        self.memory = {}

    def array(self, name, shape, dtype):
        needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if name not in self.memory or self.memory[name].nbytes < needed:
            self.memory[name] = np.zeros(needed, np.uint8)
        return self.memory[name][:needed].view(dtype).reshape(shape).view(HostArray)

    def view(self, buffer):
        return self.array(buffer.name, buffer.shape, buffer.dtype)


class Launches:
    """What kernels are launched with, read at the launch: later plans overwrite nothing of it unseen."""

    def __init__(self):
        self.dequantized, self.attended = [], []

    def get(self, op, _entry=None):
        return SimpleNamespace(launch=lambda *arguments, **_: self._launch(op, arguments))

    def _launch(self, op, arguments):
        if op == "dequantize_kv":
            runs, blocks = arguments[6], int(arguments[10])
            self.dequantized.append((runs.copy(), blocks))
        else:
            given = arguments[2]
            count = given.work_count // given.kv_heads
            tiles = np.ctypeslib.as_array((ctypes.c_int32 * (8 * count)).from_address(given.work_tiles))
            pages = [self._pages(given, tile) for tile in tiles.reshape(count, 8).copy()]
            self.attended.append(pages)

    def _pages(self, given, tile):
        """Return first query, context, and the scratch block of each block from the first KV tile on."""
        sequence, first_query, _, context, _, begin, end, _ = tile.tolist()
        table = ctypes.cast(given.block_tables, ctypes.POINTER(ctypes.c_int32))
        tokens = 64  # of a portable tile
        pages = range(begin * tokens // TB, -(-min(end * tokens, context) // TB))
        return first_query, context, {page: table[sequence * given.table_width + page] for page in pages}


@pytest.fixture
def attention():
    names = ("attention.quantized_prefill", "attention.prefill_attention", "kv_cache.quantized_kv")
    with imported(*names, "attention.prefill_plan") as (quantized, plain, kv, plan):
        yield SimpleNamespace(
            quantized=quantized.QuantizedPrefill,
            plain=plain.PrefillAttention,
            kv=kv.QuantizedKv,
            portable=plan.PORTABLE,
        )


class Gpu:
    """Prefill attention over both kinds of cache on a fake GPU with ``blocks`` scratch blocks."""

    def __init__(self, attention, blocks):
        self.uploaded = []
        self.kernels, self.workspace = Launches(), Workspace()
        uploads = SimpleNamespace(upload=self._upload)
        self.device = MagicMock(
            kernels=self.kernels, workspace=self.workspace, uploads=uploads, sm_count=132, shared_bytes=232448
        )
        self.plain = attention.plain(self.device, attention.portable)
        self.kv = attention.kv(self.device)
        self.kv.reserve(blocks, TB)
        self.quantized = attention.quantized(self.device, self.plain, self.kv)

    def _upload(self, device, host):
        device[...] = host
        self.uploaded.append(host.nbytes)

    def layer(self, batch, window=None, *, is_quantized=True):
        tokens = batch.query_starts_host[-1]
        q = on_gpu(np.zeros((tokens, GROUP * KV_HEADS, SIZE), ml_dtypes.bfloat16))
        out = self.workspace.array("attention", (tokens, q.shape[1] * SIZE), ml_dtypes.bfloat16)
        row, dtype = (FP8.row_bytes(SIZE), np.uint8) if is_quantized else (SIZE, ml_dtypes.bfloat16)
        cache = on_gpu(np.zeros((4, KV_HEADS, TB, row), dtype))
        more = {"scale": 1.0, "window": window, "out": out}
        if is_quantized:
            self.quantized(q, cache, cache, batch, **more, encoding=KvEncoding(FP8))
        else:
            self.plain(q, cache, cache, batch, **more)


def batch_of(chunks):
    """Return a step of (queries, context) chunks; the table of sequence s has 1000 s + c in column c."""
    starts = (0, *np.cumsum([queries for queries, _ in chunks]).tolist())
    contexts = tuple(context for _, context in chunks)
    width = -(-max(contexts) // TB)
    tables = 1000 * np.arange(len(chunks), dtype=np.int32)[:, None] + np.arange(width, dtype=np.int32)
    return Batch(NO, NO, NO, NO, NO, on_gpu(tables), NO, starts, contexts)


CHUNKS = [(40, 40), (5, 300), (1, 16), (130, 131), (9, 320)]


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("blocks", [20, 100])
def test_every_query_finds_its_blocks_in_the_scratch_cache(attention, blocks, window):
    gpu, batch = Gpu(attention, blocks), batch_of(CHUNKS)
    gpu.layer(batch, window)
    met = {}
    for (runs, count), tiles in zip(gpu.kernels.dequantized, gpu.kernels.attended, strict=True):
        assert count <= blocks
        source = {
            first + i: batch.block_tables[sequence, column + i]
            for sequence, column, first, length in runs.tolist()
            for i in range(length)
        }
        for first_query, context, pages in tiles:
            sequence = batch.query_starts_host.index(first_query)
            assert context == batch.context_lengths_host[sequence]
            visible = max(0, context - CHUNKS[sequence][0] - window + 1) // TB if window else 0
            for page, scratch in pages.items():
                if page >= visible:
                    assert source[scratch] == batch.block_tables[sequence, page]
                    met.setdefault(sequence, set()).add(page)
    assert set(met) == {0, 1, 3, 4}  # the sequence of one query is decode's
    for sequence, pages in met.items():
        assert max(pages) == -(-CHUNKS[sequence][1] // TB) - 1


def test_a_step_is_planned_and_copied_once_for_all_layers_and_rounds(attention):
    gpu, batch = Gpu(attention, 20), batch_of(CHUNKS)
    gpu.layer(batch)
    copied, launched = list(gpu.uploaded), list(gpu.kernels.attended)
    assert len(launched) > 1  # rounds
    assert len(copied) == 2  # work tiles, runs
    for _ in range(3):
        gpu.layer(batch)
    assert gpu.uploaded == copied
    assert gpu.kernels.attended == 4 * launched
    gpu.layer(batch_of(CHUNKS))
    assert gpu.uploaded == 2 * copied


def test_layers_of_both_kinds_keep_their_plans(attention):
    gpu, batch = Gpu(attention, 20), batch_of(CHUNKS)
    kinds = (False, True, True, False)  # the first and the last layer stay bf16
    for is_quantized in kinds:
        gpu.layer(batch, is_quantized=is_quantized)
    assert len(gpu.uploaded) == 3
    assert gpu.kernels.attended[0] == gpu.kernels.attended[-1]


@pytest.mark.parametrize("is_quantized", [False, True])
def test_windows_and_full_layers_in_turn_keep_their_plans_and_tables(attention, is_quantized):
    gpu, full = Gpu(attention, 20), batch_of(CHUNKS)
    windowed = replace(full, block_tables=on_gpu(full.block_tables + 5000))  # another paged group's
    for _ in range(3):
        gpu.layer(windowed, 100, is_quantized=is_quantized)
        gpu.layer(full, is_quantized=is_quantized)
    assert len(gpu.uploaded) == 2 * (1 + is_quantized)
    launched = gpu.kernels.attended
    assert launched == 3 * launched[: len(launched) // 3]  # no plan overwrote another's tiles
    if not is_quantized:
        blocks = [{block for *_, pages in layer for block in pages.values()} for layer in launched[:2]]
        assert min(blocks[0]) >= 5000 > max(blocks[1])


def test_rounds_fit_the_buffer_that_is_reserved_for_them(attention):
    chunks = [(16, 8192)] * 24
    gpu = Gpu(attention, 512)  # a sequence a round, each split over the GPU
    gpu.layer(batch_of(chunks))
    tiles = sum(map(len, gpu.kernels.attended))
    sizes = {"group": GROUP, "kv_heads": KV_HEADS, "sm_count": 132}
    assert tiles > max_work_tiles(384, 24, 128, **sizes)
    assert tiles <= max_work_tiles(384, 24, 128, **sizes, rounds=24)
