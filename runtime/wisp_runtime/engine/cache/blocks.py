"""Count who holds which KV block.

Pure: a block is a number here; its bytes are :mod:`wisp_runtime.layers.cache`'s. A block is free (no
holder) or held by one or more of: sequences, and the prefix cache. Which free block comes next
depends only on what was taken and given back before, so a run can be replayed.
"""

from __future__ import annotations


class BlockPool:
    """Blocks ``0 … blocks - 1`` with a count of holders each."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._holders = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks that no one holds."""
        return len(self._free)

    def holders(self, block: int) -> int:
        """Return how many hold ``block``."""
        return self._holders[block]

    def take(self) -> int:
        """Return a free block, now held once. There must be one."""
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a holder to a block that has one already."""
        assert self._holders[block] > 0, f"block {block} is free and cannot be shared"
        self._holders[block] += 1

    def release(self, block: int) -> int:
        """Drop one holder and return how many are left; at 0 the block is free."""
        assert self._holders[block] > 0, f"block {block} is free and cannot be released"
        self._holders[block] -= 1
        if not self._holders[block]:
            self._free.append(block)
        return self._holders[block]


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Return how many blocks of ``block_tokens`` hold ``tokens`` tokens."""
    return -(-tokens // block_tokens)
