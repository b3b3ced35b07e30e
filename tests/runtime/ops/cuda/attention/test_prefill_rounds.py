"""Rounds of prefill attention over a quantized cache: the blocks of each, and their scratch blocks."""

from __future__ import annotations

import pytest

from wisp_runtime.ops.cuda.attention.prefill_plan import Chunk
from wisp_runtime.ops.cuda.attention.prefill_rounds import rounds

FIRST, LONG, LAST = Chunk(0, 0, 20, 20), Chunk(2, 20, 4, 100), Chunk(3, 24, 16, 16)


@pytest.mark.parametrize(
    ("max_blocks", "window", "expect"),
    [
        (0, None, [[0, 2, 3]]),
        (10, None, [[0, 2, 3]]),  # 2, 7 and 1 blocks of 16 tokens
        (9, None, [[0, 2], [3]]),
        (7, None, [[0], [2], [3]]),
        (7, 20, [[0, 2, 3]]),  # of the long one tokens 77 to 99 are visible: 3 blocks
    ],
)
def test_sequences_share_a_round_while_their_blocks_fit(max_blocks, window, expect):
    planned = list(rounds([FIRST, LONG, LAST], 16, window, max_blocks))
    assert [part.runs[:, 0].tolist() for part in planned] == expect
    for part in planned:
        assert not max_blocks or part.blocks <= max_blocks
        firsts, counts = part.runs[:, 2], part.runs[:, 3]
        assert firsts.tolist() == [0, *(firsts + counts)[:-1]]  # one after another
        assert part.blocks == counts.sum()


def test_blocks_before_the_window_are_not_read():
    (part,) = rounds([LONG], 16, 20, 0)
    assert part.runs.tolist() == [[2, 4, 0, 3]]
    assert part.blocks == 3
    (chunk,) = part.chunks
    assert (chunk.first_query, chunk.queries, chunk.context) == (20, 4, 100)
    assert chunk.sequence + 4 == 0  # block 4 is scratch block 0


@pytest.mark.parametrize("sequences", [1, 256])
def test_tables_do_not_grow_with_contexts(sequences):
    chunks = [Chunk(row, 2 * row, 2, 131072) for row in range(sequences)]
    parts = list(rounds(chunks, 16, None, 8192))
    assert sum(part.runs.nbytes for part in parts) == 16 * sequences
