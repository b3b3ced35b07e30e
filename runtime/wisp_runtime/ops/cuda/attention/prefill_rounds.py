"""Rounds of prefill attention over a quantized cache: blocks to dequantize, and their places. Pure.

The blocks of a sequence lie one after another in the scratch cache, so a run of four numbers describes them,
and one table of ascending numbers serves all sequences: the entry of block c is the sequence's row plus c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from wisp_plan.memory.buffers.kv_cache import RUN_FIELDS
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.attention.prefill_plan import Chunk


@dataclass(frozen=True, slots=True)
class Round:
    """Some sequences of a step.

    Attributes:
        chunks: chunks of these sequences; ``sequence`` is the row of the ascending table, of which each row
            has one entry: below 0 where a window hides a sequence's first blocks.
        runs: ``[C, RUN_FIELDS]`` int32: sequence, its first block, and the scratch block that this becomes;
            the number of blocks.
        blocks: blocks of all runs.
    """

    chunks: tuple[Chunk, ...]
    runs: Array
    blocks: int


def rounds(chunks: list[Chunk], block_tokens: int, window: int | None, max_blocks: int) -> Iterator[Round]:
    """Split a step into rounds of at most ``max_blocks`` blocks, if that is not 0.

    Args:
        chunks: the sequences with prompts.
        block_tokens: Tb.
        window: tokens that a query attends to; blocks before are not read.
        max_blocks: blocks of the scratch cache; it holds any one sequence.
    """
    taken: list[tuple[Chunk, range]] = []
    count = 0
    for chunk in chunks:
        lowest = max(0, chunk.context - chunk.queries - window + 1) if window else 0
        blocks = range(lowest // block_tokens, -(-chunk.context // block_tokens))
        if taken and max_blocks and len(blocks) + count > max_blocks:
            yield _round(taken)
            taken, count = [], 0
        taken.append((chunk, blocks))
        count += len(blocks)
    if taken:
        yield _round(taken)


def _round(taken: list[tuple[Chunk, range]]) -> Round:
    runs, chunks, first = np.empty((len(taken), RUN_FIELDS), np.int32), list[Chunk](), 0
    for row, (chunk, blocks) in enumerate(taken):
        runs[row] = chunk.sequence, blocks.start, first, len(blocks)
        chunks.append(replace(chunk, sequence=first - blocks.start))
        first += len(blocks)
    return Round(tuple(chunks), runs, first)
