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
    found = list(rounds([FIRST, LONG, LAST], (4, 7), 16, window, max_blocks))
    assert [[row for row, context in enumerate(one.contexts) if context] for one in found] == expect
    for one in found:
        assert not max_blocks or len(one.entries) <= max_blocks
        assert {one.tables[row, column] for row, column in one.entries} == set(range(len(one.entries)))
        assert [tuple(one.entries[one.tables[row, column]]) for row, column in one.entries.tolist()] == [
            tuple(entry) for entry in one.entries.tolist()
        ]


def test_blocks_before_the_window_are_not_read():
    (one,) = rounds([LONG], (4, 7), 16, 20, 0)
    assert one.entries.tolist() == [[2, 4], [2, 5], [2, 6]]
    assert one.contexts == (0, 0, 100, 0)
