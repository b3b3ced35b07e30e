"""Remember full KV blocks by the tokens they hold, so that a prompt seen before is not computed again.

Pure. A tree: the path from the root to a node spells the tokens of a prefix, one full block a node.
The tree itself is a holder of every block in it. A block that only the tree holds is *idle*: still
good for a hit, and the first to go when blocks are needed.

Two facts make eviction one step. Who holds a node's block holds its parents' too (:meth:`insert`
hands out the tree's block where two sequences computed the same one), and sequences release from
the tail. So a node becomes idle after all its children, and the longest idle one is a leaf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Tokens

from wisp_runtime.engine.cache.blocks import BlockPool


class Node:
    """One full block in the tree; children are found by their tokens, compared in full."""

    __slots__ = ("block", "children", "parent", "tokens")

    def __init__(self, parent: Node | None, tokens: tuple[int, ...], block: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.block = block
        self.children: dict[tuple[int, ...], Node] = {}


class PrefixCache:
    """A pool whose released blocks may be found again by the tokens in them."""

    def __init__(self, pool: BlockPool, block_tokens: int) -> None:
        self.pool = pool
        self.block_tokens = block_tokens
        self.root = Node(None, (), -1)
        self._nodes: dict[int, Node] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that can be taken now: free, or idle in the tree."""
        return self.pool.free + len(self._idle)

    def take(self) -> int:
        """Return a block with one holder, evicting the longest idle one if none is free."""
        if not self.pool.free:
            self._evict()
        return self.pool.take()

    def release(self, blocks: Tokens[int]) -> None:
        """Drop one holder of each of a sequence's ``blocks``, given in the sequence's order."""
        for block in reversed(blocks):
            if self.pool.release(block) == 1 and block in self._nodes:
                self._idle[block] = None

    def find(self, parent: Node, tokens: Tokens[int], start: int) -> Node | None:
        """Return the node after ``parent`` that holds the block of ``tokens`` beginning at ``start``."""
        if not parent.children:
            return None
        return parent.children.get(tuple(tokens[start : start + self.block_tokens]))

    def hold(self, node: Node) -> int:
        """Add a holder to ``node``'s block and return the block."""
        self._idle.pop(node.block, None)
        self.pool.share(node.block)
        return node.block

    def insert(self, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
        """Enter a computed block after ``parent``; the caller holds ``block`` and ``parent``'s.

        Returns:
            The node. Its block may be another than ``block`` if someone entered these tokens first:
            then the caller's hold has moved to that one.
        """
        node = parent.children.get(tokens)
        if node is None:
            node = parent.children[tokens] = self._nodes[block] = Node(parent, tokens, block)
            self.pool.share(block)
        elif node.block != block:
            self.hold(node)
            self.pool.release(block)
        return node

    def forget(self) -> None:
        """Let nothing entered so far be found again (after a step whose results are not to be trusted)."""
        while self._idle:
            self._evict()
        self.root.children.clear()

    def _evict(self) -> None:
        block, _ = self._idle.popitem(last=False)
        node = self._nodes.pop(block)
        assert not node.children, f"block {block} was idle before its children"
        assert node.parent is not None
        if node.parent.children.get(node.tokens) is node:
            del node.parent.children[node.tokens]
        self.pool.release(block)
