"""Attention of decode tokens, in NumPy: one query a sequence, K and V read where they lie.

Blocks that follow each other in the cache are read in place; the others are copied together first. The
blocks need no order here: a decode token attends to all of its sequence, and a softmax has no order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cpu.threads import Work, Workers
from wisp_runtime.ops.reference.kv_cache.blocks import QuantizedBlocks

_MIN_BLOCKS_IN_PLACE = 8  # fewer cost more as a GEMM of their own than as copies


@dataclass(frozen=True, slots=True)
class Run:
    """Some of a sequence's blocks.

    Attributes:
        blocks: a slice of the cache's blocks, or ``[n]`` block numbers.
        columns: their scores among the sequence's.
    """

    blocks: slice | Array
    columns: slice


@dataclass(frozen=True, slots=True)
class Decode:
    """One query that attends to all of its sequence.

    Attributes:
        query: row of N.
        context: S, tokens of the sequence.
        runs: their blocks. Unless all are full, the last block of the last run, which is copied, is not.
    """

    query: int
    context: int
    runs: tuple[Run, ...]


def decodes(batch: Batch, block_tokens: int, window: int | None) -> dict[int, Decode]:
    """List the sequences of ``batch`` with one query whose window holds all tokens, by their row of B.

    All layers share the list, which is made once a step.
    """
    starts = batch.query_starts_host
    return {
        row: Decode(starts[row], context, _runs(batch.block_tables[row], context, block_tokens))
        for row, context in enumerate(batch.context_lengths_host)
        if starts[row + 1] - starts[row] == 1 and (window is None or context <= window)
    }


def _runs(table: Array, context: int, block_tokens: int) -> tuple[Run, ...]:
    """Split a sequence's blocks into long consecutive runs of full ones, and one run of all others."""
    full, used = context // block_tokens, -(-context // block_tokens)
    consecutive = np.split(table[:full], np.flatnonzero(np.diff(table[:full]) != 1) + 1)
    long = [blocks for blocks in consecutive if len(blocks) >= _MIN_BLOCKS_IN_PLACE]
    short = (blocks for blocks in consecutive if len(blocks) < _MIN_BLOCKS_IN_PLACE)
    others = np.concatenate([*short, table[full:used]])
    runs: list[tuple[slice | Array, int]] = [
        (slice(int(blocks[0]), int(blocks[-1]) + 1), len(blocks)) for blocks in long
    ]
    if len(others):
        runs.append((others, len(others)))
    ends = list(accumulate(count * block_tokens for _, count in runs))
    columns = [slice(first, last) for first, last in pairwise((0, *ends))]
    return tuple(Run(blocks, span) for (blocks, _), span in zip(runs, columns, strict=True))


def attend_decodes(
    q: Array,
    keys: Array | QuantizedBlocks,
    values: Array | QuantizedBlocks,
    queries: list[Decode],
    scale: float,
    sinks: Array | None,
    out: Array,
    workers: Workers | None,
) -> None:
    """Write the attention of decode tokens into their rows of ``out`` ``[N, Hq, Dh]``.

    Args:
        q: ``[N, Hq, Dh]`` float32.
        keys, values: ``[P, Hkv, Tb, Dh]``.
        queries: their rows and contexts.
        scale: multiplies the scores.
        sinks: ``[Hq]`` float32, one more logit a head; None: there are none.
        workers: threads that share the sequences; None computes here.
    """

    def attend(share: slice) -> None:
        for decode in queries[share]:
            out[decode.query] = _attend(q[decode.query], keys, values, decode, scale, sinks)

    if workers is None or len(queries) < 2:
        attend(slice(None))
        return
    tokens = sum(decode.context for decode in queries)
    work = Work(
        len(queries),
        multiplications=2 * tokens * q.shape[1] * q.shape[2],
        bytes_read=2 * 4 * tokens * keys.shape[1] * keys.shape[3],
    )
    workers.split(work, attend)


def _attend(
    q: Array,
    keys: Array | QuantizedBlocks,
    values: Array | QuantizedBlocks,
    decode: Decode,
    scale: float,
    sinks: Array | None,
) -> Array:
    """Return the attention of one query ``[Hq, Dh]`` to its sequence, ``[Hq, Dh]``."""
    (_, kv_heads, block_tokens, size), last = keys.shape, decode.runs[-1]
    queries = (q * np.float32(scale)).reshape(kv_heads, -1, size)
    weights = np.empty((kv_heads, queries.shape[1], last.columns.stop), np.float32)
    for run in decode.runs:
        k = _blocks_of(keys, run).swapaxes(2, 3)
        np.matmul(queries, k, out=_by_block(weights, run, block_tokens))
    weights[:, :, decode.context :] = -np.inf
    total = exponentials(weights, None if sinks is None else sinks.reshape(*weights.shape[:2], 1))
    mixed = np.zeros(queries.shape, np.float32)
    for run in decode.runs:
        v = _blocks_of(values, run)
        if run is last and decode.context % block_tokens:
            v[-1, :, decode.context % block_tokens :] = 0  # a weight of 0 does not undo a NaN that lies there
        mixed += np.matmul(_by_block(weights, run, block_tokens), v).sum(axis=0)
    mixed /= total
    return mixed.reshape(q.shape)


def exponentials(scores: Array, sinks: Array | None) -> Array:
    """Replace scores ``[…, S]`` by the numerators of their softmax; return its denominators ``[…, 1]``.

    Args:
        sinks: ``[…, 1]``, one more logit of each row; None: there are none.
    """
    highest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        highest = np.maximum(highest, sinks)
    scores -= highest
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    return total if sinks is None else total + np.exp(sinks - highest)


def _blocks_of(cache: Array | QuantizedBlocks, run: Run) -> Array:
    """Return a run's keys or values, ``[blocks, Hkv, Tb, Dh]``: a view if consecutive, else a copy."""
    return cache[run.blocks] if isinstance(run.blocks, slice) else cache.take(run.blocks, axis=0)


def _by_block(weights: Array, run: Run, block_tokens: int) -> Array:
    """View a run's columns of ``[Hkv, R, S]`` as ``[blocks, Hkv, R, Tb]``."""
    columns = weights[:, :, run.columns]
    return columns.reshape(*columns.shape[:2], -1, block_tokens).transpose(2, 0, 1, 3)
