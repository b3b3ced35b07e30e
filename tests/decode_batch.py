"""Decode steps of random sequences, for the tests of the persistent decode kernel, emulated and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from wisp_runtime.batch import Array, Batch, StepKind


def decode_batch(
    contexts: Sequence[int],
    vocab: int,
    blocks: Sequence[int],
    block_tokens: int,
    seed: int,
    put: Callable[[Array], Array] = lambda array: array,
) -> Batch:
    """Make a step of sequences with so many tokens, the new one included; of 0 tokens: padding.

    Args:
        blocks: cache blocks to choose from, at random.
        put: brings an array where the step runs.
    """
    random = np.random.default_rng(seed)
    lengths = np.array(contexts, np.int32)
    counts = -(-lengths // block_tokens)
    free = random.permutation(np.array(blocks))
    assert counts.sum() <= len(free)
    tables = np.zeros((len(lengths), max(counts.max(), 1)), np.int32)
    for row, count in enumerate(counts):
        tables[row, :count], free = free[:count], free[count:]
    rows = np.arange(len(lengths), dtype=np.int64)
    positions = np.maximum(lengths - 1, 0).astype(np.int32)
    slots = tables[rows, positions // block_tokens].astype(np.int64) * block_tokens
    slots = np.where(lengths > 0, slots + positions % block_tokens, -1)
    tokens = random.integers(0, vocab, len(lengths)).astype(np.int32)
    starts = np.arange(len(lengths) + 1, dtype=np.int32)
    arrays = tokens, positions, slots, starts, lengths, tables, rows
    return Batch(*map(put, arrays), tuple(starts.tolist()), tuple(lengths.tolist()), StepKind.DECODE)
