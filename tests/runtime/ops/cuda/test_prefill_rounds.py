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
    assert [[row for row, context in enumerate(planned.contexts) if context] for planned in found] == expect
    for planned in found:
        assert not max_blocks or len(planned.entries) <= max_blocks
        assert {planned.tables[row, column] for row, column in planned.entries} == set(
            range(len(planned.entries))
        )
        assert [
            tuple(planned.entries[planned.tables[row, column]]) for row, column in planned.entries.tolist()
        ] == [tuple(entry) for entry in planned.entries.tolist()]


def test_blocks_before_the_window_are_not_read():
    (planned,) = rounds([LONG], (4, 7), 16, 20, 0)
    assert planned.entries.tolist() == [[2, 4], [2, 5], [2, 6]]
    assert planned.contexts == (0, 0, 100, 0)
