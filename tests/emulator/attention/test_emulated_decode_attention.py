"""Decode attention on the emulated GPU: batch-invariant splits, and those of the whole batch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from emulated_gpu import EmulatedGpu, HostArray, imported, to_gpu
from emulated_kernel import needs_compiler
from ml_dtypes import bfloat16

from wisp_runtime.batch import Batch
from wisp_runtime.ops import reference

pytestmark = needs_compiler
TB, HEADS, KV_HEADS, SIZE = 16, 4, 2, 64
CONTEXTS = (600, 1, 257, 64, 1040)  # splits of 256 tokens: 3, 1, 2, 1, 5
ROUNDING = 2**-7  # of the largest value of a row
NOTHING = np.zeros(0, np.int32)


@pytest.fixture(scope="module")
def attention_class():
    with imported("attention.decode_attention") as (module,):
        yield module.DecodeAttention


class Sequences:
    """Caches and queries of CONTEXTS, in blocks of their own."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        counts = [-(-context // TB) for context in CONTEXTS]
        blocks = random.permutation(sum(counts)).astype(np.int32)
        shape = (len(blocks), KV_HEADS, TB, SIZE)
        self.keys, self.values = (random.standard_normal(shape, np.float32).astype(bfloat16) for _ in "kv")
        self.q = (3 * random.standard_normal((len(CONTEXTS), HEADS, SIZE), np.float32)).astype(bfloat16)
        self.tables = np.zeros((len(CONTEXTS), max(counts)), np.int32)
        for row, last in enumerate(np.cumsum(counts)):
            self.tables[row, : counts[row]] = blocks[last - counts[row] : last]

    def batch(self, rows: list[int]) -> Batch:
        starts = np.arange(len(rows) + 1, dtype=np.int32)
        contexts = np.array([CONTEXTS[row] for row in rows], np.int32)
        return Batch(
            *[NOTHING] * 3, starts, contexts, self.tables[rows], NOTHING, tuple(starts), tuple(contexts)
        )

    def attend(self, attention, rows: list[int], window=None, sinks=None) -> np.ndarray:
        host = self.batch(rows)
        on_gpu = Batch(
            *[NOTHING] * 3,
            *map(to_gpu, (host.query_starts, host.context_lengths, host.block_tables)),
            NOTHING,
            host.query_starts_host,
            host.context_lengths_host,
        )
        out: HostArray = to_gpu(np.zeros((len(rows), HEADS * SIZE), bfloat16))
        arrays = to_gpu(self.q[rows]), to_gpu(self.keys), to_gpu(self.values)
        options = {"scale": SIZE**-0.5, "window": window, "sinks": None if sinks is None else to_gpu(sinks)}
        attention(*arrays, on_gpu, **options, max_context=max(CONTEXTS), out=out)
        return out.host

    def error(self, found: np.ndarray, window=None, sinks=None) -> float:
        """Return the largest error of all sequences' results, of the largest value of a row."""
        arrays = (array.astype(np.float32) for array in (self.q, self.keys, self.values))
        batch = self.batch(list(range(len(CONTEXTS))))
        expected = reference.paged_attention(
            *arrays, batch, scale=SIZE**-0.5, window=window, sinks=sinks
        ).reshape(found.shape)
        error = np.abs(found.astype(np.float32) - expected)
        return float((error / np.abs(expected).max(axis=1, keepdims=True)).max())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("window", "has_sinks"), [(None, False), (None, True), (300, True)])
def test_a_sequence_alone_and_in_any_batch_has_the_same_bits(attention_class, seed, window, has_sinks):
    case = Sequences(seed)
    sinks = np.array([-1.0, 2.0, 0.5, 9.0], np.float32) if has_sinks else None
    attention = attention_class(EmulatedGpu(seed))
    attention.set_batch_invariant()
    everyone = list(range(len(CONTEXTS)))
    together = case.attend(attention, everyone, window, sinks)
    for rows in ([0], [1], [2], [4], [4, 3, 2], [3, 0, 0, 1]):
        found = case.attend(attention, rows, window, sinks)
        assert np.array_equal(found.view(np.uint16), together[rows].view(np.uint16)), rows
    assert case.error(together, window, sinks) <= ROUNDING


def test_splits_by_the_whole_batch_give_the_same_but_for_rounding(attention_class):
    case = Sequences(7)
    found = case.attend(attention_class(EmulatedGpu(7)), list(range(len(CONTEXTS))))
    assert case.error(found) <= ROUNDING
