"""Turn a plan into the arrays of one step. Made on the host; the runner moves them to the device."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from wisp_runtime.batch import Batch
from wisp_runtime.engine.plan import Plan


def pack(plan: Plan, block_tokens: int) -> Batch:
    """Lay out the chunks of ``plan`` one after the other, as :class:`wisp_runtime.batch.Batch` says.

    Args:
        plan: at least one chunk.
        block_tokens: Tb, tokens a KV block.
    """
    counts = [chunk.tokens for chunk in plan]
    first = [chunk.start for chunk in plan]
    ends = [start + count for start, count in zip(first, counts, strict=True)]
    query_starts = (0, *accumulate(counts))
    tokens: list[int] = []
    for sequence, start, count, _ in plan:
        tokens += sequence.tokens[start : start + count]

    tables = _block_tables(plan)
    rows = np.repeat(np.arange(len(plan)), counts)
    starts = np.array(query_starts, dtype=np.int32)
    positions = np.arange(len(tokens)) + np.array(first)[rows] - starts[rows]
    blocks, offsets = np.divmod(positions, block_tokens)
    return Batch(
        tokens=np.array(tokens, dtype=np.int32),
        positions=positions.astype(np.int32),
        slots=tables[rows, blocks].astype(np.int64) * block_tokens + offsets,
        query_starts=starts,
        context_lengths=np.array(ends, dtype=np.int32),
        block_tables=tables,
        logit_rows=np.array(
            [last - 1 for last, chunk in zip(query_starts[1:], plan, strict=True) if chunk.samples],
            dtype=np.int64,
        ),
        query_starts_host=query_starts,
        context_lengths_host=tuple(ends),
    )


def _block_tables(plan: Plan) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Return ``[B, W]`` int32, W the most blocks a sequence of the plan has."""
    tables = np.zeros((len(plan), max(len(chunk.sequence.blocks) for chunk in plan)), dtype=np.int32)
    for row, chunk in zip(tables, plan, strict=True):
        blocks = chunk.sequence.blocks
        row[: len(blocks)] = blocks
    return tables
