"""Attention of decode tokens, in NumPy: one query a sequence, K and V read where they lie.

Blocks that follow each other in the cache are read in place; the others are copied together first. The
blocks need no order here: a decode token sees all of its sequence, and a softmax has no order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cpu.threads import Work, Workers

_MIN_BLOCKS_IN_PLACE = 8  # fewer cost more as a product of their own than as copies


@dataclass(frozen=True, slots=True)
class Run:
    """Some of a sequence's blocks.

    Attributes:
        blocks: a slice of the cache's blocks, or ``[n]`` block numbers.
        columns: where their scores lie among the sequence's.
    """

    blocks: slice | Array
    columns: slice


@dataclass(frozen=True, slots=True)
class Decode:
    """One query that sees all of its sequence.

    Attributes:
        query: its row of N.
        context: S, the tokens it sees.
        runs: their blocks. Unless all are full, the last block of the last run, which is copied, is not.
    """

    query: int
    context: int
    runs: tuple[Run, ...]


def decodes(batch: Batch, block_tokens: int, window: int | None) -> dict[int, Decode]:
    """Find the sequences of ``batch`` with one query whose window hides nothing, by their row of B.

    The same for every layer: made once a step.
    """
    starts = batch.query_starts_host
    return {
        row: Decode(starts[row], context, _runs(batch.block_tables[row], context, block_tokens))
        for row, context in enumerate(batch.context_lengths_host)
        if starts[row + 1] - starts[row] == 1 and (window is None or context <= window)
    }


def _runs(table: Array, context: int, block_tokens: int) -> tuple[Run, ...]:
    """Cut a sequence's blocks into long consecutive runs of full ones, and one run of all others."""
    full, used = context // block_tokens, -(-context // block_tokens)
    parts = np.split(table[:full], np.flatnonzero(np.diff(table[:full]) != 1) + 1)
    long = [part for part in parts if len(part) >= _MIN_BLOCKS_IN_PLACE]
    others = np.concatenate([*(part for part in parts if len(part) < _MIN_BLOCKS_IN_PLACE), table[full:used]])
    cut: list[tuple[slice | Array, int]] = [
        (slice(int(part[0]), int(part[-1]) + 1), len(part)) for part in long
    ]
    if len(others):
        cut.append((others, len(others)))
    ends = list(accumulate(count * block_tokens for _, count in cut))
    columns = [slice(first, last) for first, last in pairwise((0, *ends))]
    return tuple(Run(blocks, where) for (blocks, _), where in zip(cut, columns, strict=True))


def attend_decodes(
    q: Array,
    keys: Array,
    values: Array,
    queries: list[Decode],
    scale: float,
    out: Array,
    workers: Workers | None,
) -> None:
    """Write the attention of decode tokens into their rows of ``out`` ``[N, Hq, Dh]``.

    Args:
        q: ``[N, Hq, Dh]`` float32.
        keys, values: ``[P, Hkv, Tb, Dh]``.
        queries: which rows, and what they see.
        scale: multiplies the scores.
        workers: threads that share the sequences; None computes here.
    """

    def attend(part: slice) -> None:
        for one in queries[part]:
            out[one.query] = _attend(q[one.query], keys, values, one, scale)

    if workers is None or len(queries) < 2:
        attend(slice(None))
        return
    tokens = sum(one.context for one in queries)
    work = Work(
        len(queries),
        multiplications=2 * tokens * q.shape[1] * q.shape[2],
        bytes_read=2 * 4 * tokens * keys.shape[1] * keys.shape[3],
    )
    workers.split(work, attend)


def _attend(q: Array, keys: Array, values: Array, seen: Decode, scale: float) -> Array:
    """Return the attention of one query ``[Hq, Dh]`` to its sequence, ``[Hq, Dh]``."""
    (_, kv_heads, block_tokens, size), last = keys.shape, seen.runs[-1]
    queries = (q * np.float32(scale)).reshape(kv_heads, -1, size)
    weights = np.empty((kv_heads, queries.shape[1], last.columns.stop), np.float32)
    for run in seen.runs:
        k = _taken(keys, run).swapaxes(2, 3)
        np.matmul(queries, k, out=_by_block(weights, run, block_tokens))
    weights[:, :, seen.context :] = -np.inf
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    mixed = np.zeros(queries.shape, np.float32)
    for run in seen.runs:
        v = _taken(values, run)
        if run is last and seen.context % block_tokens:
            v[-1, :, seen.context % block_tokens :] = 0  # whatever lies there, weight 0 does not undo a NaN
        mixed += np.matmul(_by_block(weights, run, block_tokens), v).sum(axis=0)
    mixed /= weights.sum(axis=-1, keepdims=True)
    return mixed.reshape(q.shape)


def _taken(cache: Array, run: Run) -> Array:
    """Return a run's keys or values, ``[blocks, Hkv, Tb, Dh]``: a view if consecutive, else a copy."""
    return cache[run.blocks] if isinstance(run.blocks, slice) else cache.take(run.blocks, axis=0)


def _by_block(weights: Array, run: Run, block_tokens: int) -> Array:
    """See a run's part of ``[Hkv, R, S]`` as ``[blocks, Hkv, R, Tb]``."""
    part = weights[:, :, run.columns]
    return part.reshape(*part.shape[:2], -1, block_tokens).transpose(2, 0, 1, 3)
