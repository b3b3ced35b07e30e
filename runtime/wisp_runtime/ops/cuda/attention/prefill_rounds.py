"""Rounds of prefill attention over a quantized cache: blocks to dequantize, and their places. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.attention.prefill_plan import Chunk


@dataclass(frozen=True, slots=True)
class Round:
    """Some sequences of a step.

    Attributes:
        contexts: tokens of each sequence of the batch; 0 of those of other rounds.
        entries: ``[E, 2]`` int32, the sequence and the column of its table that scratch block e comes from.
        tables: ``[B, W]`` int32, scratch blocks of each sequence.
    """

    contexts: tuple[int, ...]
    entries: Array
    tables: Array


def rounds(
    chunks: list[Chunk], tables: tuple[int, ...], block_tokens: int, window: int | None, max_blocks: int
) -> Iterator[Round]:
    """Split a step into rounds of at most ``max_blocks`` blocks, if that is not 0.

    Args:
        chunks: the sequences with prompts.
        tables: shape of the block tables.
        block_tokens: Tb.
        window: tokens that a query attends to; blocks before are not read.
        max_blocks: blocks of the scratch cache; it holds any one sequence.
    """
    taken: list[tuple[Chunk, range]] = []
    for chunk in chunks:
        lowest = max(0, chunk.context - chunk.queries - window + 1) if window else 0
        blocks = range(lowest // block_tokens, -(-chunk.context // block_tokens))
        if taken and max_blocks and len(blocks) + sum(len(other) for _, other in taken) > max_blocks:
            yield _round(taken, tables)
            taken = []
        taken.append((chunk, blocks))
    if taken:
        yield _round(taken, tables)


def _round(taken: list[tuple[Chunk, range]], shape: tuple[int, ...]) -> Round:
    contexts, tables, entries = [0] * shape[0], np.zeros(shape, np.int32), list[tuple[int, int]]()
    for chunk, blocks in taken:
        contexts[chunk.sequence] = chunk.context
        tables[chunk.sequence, blocks.start : blocks.stop] = np.arange(len(blocks)) + len(entries)
        entries += ((chunk.sequence, column) for column in blocks)
    return Round(tuple(contexts), np.array(entries, np.int32), tables)
