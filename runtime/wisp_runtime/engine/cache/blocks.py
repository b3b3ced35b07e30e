"""Reference counts of blocks.

Pure: a block is a number here; its bytes are :mod:`wisp_runtime.layers.cache`'s. A block is free (count 0),
    or
referenced by one or more of: sequences, and the prefix tree. Which free block comes next depends only on what
was taken and released before, so a run can be replayed.
"""

from __future__ import annotations


class BlockPool:
    """Blocks ``0 … blocks - 1`` with a reference count each."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._counts = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks with no reference."""
        return len(self._free)

    def ref_count(self, block: int) -> int:
        """Return the references to ``block``."""
        return self._counts[block]

    def take(self) -> int:
        """Return a free block, now with one reference. There must be one."""
        block = self._free.pop()
        self._counts[block] = 1
        return block

    def acquire(self, block: int) -> None:
        """Add a reference to a block that has one already."""
        assert self._counts[block] > 0, f"block {block} is free and cannot be acquired"
        self._counts[block] += 1

    def release(self, block: int) -> int:
        """Drop one reference and return how many are left; at 0 the block is free."""
        assert self._counts[block] > 0, f"block {block} is free and cannot be released"
        self._counts[block] -= 1
        if not self._counts[block]:
            self._free.append(block)
        return self._counts[block]


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Return how many blocks of ``block_tokens`` hold ``tokens`` tokens."""
    return -(-tokens // block_tokens)
