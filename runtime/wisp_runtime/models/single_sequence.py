"""Batches of one sequence whose blocks follow each other: for passes outside of the engine, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wisp_runtime.batch import Batch, StepKind

BLOCK_TOKENS = 16


def blocks_of(context: int) -> int:
    """Return the KV blocks of a sequence."""
    return -(-context // BLOCK_TOKENS)


def sequence_batch(
    tokens: Sequence[int], first: int, context: int, logit_rows: Sequence[int], groups: int = 1
) -> Batch:
    """Return a prefill step of one sequence, whose recurrent state is in slot 0.

    Args:
        tokens: tokens of the step.
        first: position of the first.
        context: longest context of the sequence; its blocks are 0, 1, ….
        logit_rows: rows of ``tokens`` whose logits are wanted.
        groups: paged groups of the cache; the same blocks serve each.
    """
    end = first + len(tokens)
    positions = np.arange(first, end, dtype=np.int32)
    batch = Batch(
        tokens=np.asarray(tokens, np.int32),
        positions=positions,
        slots=positions.astype(np.int64),
        query_starts=np.array([0, len(tokens)], np.int32),
        context_lengths=np.array([end], np.int32),
        block_tables=np.arange(blocks_of(context), dtype=np.int32)[None],
        logit_rows=np.asarray(logit_rows, np.int64),
        query_starts_host=(0, len(tokens)),
        context_lengths_host=(end,),
        kind=StepKind.PREFILL,
        state_slots=np.zeros(1, np.int32),
    )
    return replace(batch, other_groups=(batch,) * (groups - 1))
