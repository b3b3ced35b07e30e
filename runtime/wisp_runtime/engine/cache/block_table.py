"""Block tables of a step on the host, kept from step to step: only rows that changed are written."""

from __future__ import annotations

from array import array

import numpy as np

from wisp_runtime.engine.scheduling.plan import Plan


class BlockTables:
    """A row of block numbers for each sequence of a step, of one paged group.

    Attributes:
        table: ``[rows, width]`` int32; entries beyond a sequence's blocks are valid, and mean nothing.

    Args:
        rows: maximum of sequences in a step.
        width: maximum of blocks of a sequence.
        group: position of the group among the paged ones.
    """

    def __init__(self, rows: int, width: int, group: int = 0) -> None:
        self._group = group
        self.table = np.zeros((rows, width), np.int32)
        self._written: list[array[int] | None] = [None] * rows  # array that was copied to each row,
        self._counts = [0] * rows  # and entries of it

    def update(self, plan: Plan) -> tuple[slice, slice] | None:
        """Write the blocks of each sequence of ``plan``, in order; return the rows and columns that changed.

        A sequence's blocks are an array that grows in place and is replaced by another otherwise.
        """
        first, last, columns = len(plan), -1, 0
        for row, chunk in enumerate(plan):
            blocks, had = chunk.sequence.cache.tables[self._group], self._counts[row]
            count = len(blocks)
            if self._written[row] is not blocks:
                self.table[row, :count] = blocks
                self._written[row] = blocks
            elif count != had:
                self.table[row, had:count] = blocks[had:]
            else:
                continue
            self._counts[row] = count
            first, last, columns = min(first, row), row, max(columns, count)
        return (slice(first, last + 1), slice(0, columns)) if last >= 0 else None
