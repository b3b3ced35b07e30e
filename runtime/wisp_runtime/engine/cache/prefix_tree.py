"""Computed blocks by the tokens they hold, so that a prompt seen before is not computed again.

Pure. The path from the root to a node spells the tokens of a prefix, one block a node. A node refers to a
block of each paged group, and to a snapshot of the recurrent state at its end (:mod:`.state_slots`). A block
that only the tree refers to is *evictable*: still good for a hit, and the first to go when blocks are needed.

A group without a window loses blocks from the leaves only: a sequence that refers to a node's block refers to
its parents' too (:meth:`PrefixTree.insert` hands out the tree's block where two sequences computed the same
one), and sequences release from the tail. So a node becomes evictable after its children, and what else it
refers to goes with it. A group with a window loses its blocks in any order; the node stays while anything
lies below it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from itertools import chain

from wisp_runtime.engine.cache.blocks import BlockPool
from wisp_runtime.engine.cache.node import Node
from wisp_runtime.engine.cache.sequence_cache import SequenceCache
from wisp_runtime.engine.cache.state_slots import StateSlots


class GroupBlocks:
    """Blocks of one paged group.

    Attributes:
        index: position among the paged groups.
        window: tokens that a query sees; None: all.
        pool: reference counts, the tree's included.
        nodes: node of each block that the tree refers to.
        evictable: blocks that only the tree refers to, the least recently used first.
    """

    def __init__(self, index: int, blocks: int, window: int | None) -> None:
        self.index, self.window = index, window
        self.pool = BlockPool(blocks)
        self.nodes: dict[int, Node] = {}
        self.evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        return self.pool.free + len(self.evictable)

    def available_without(self, caches: Iterable[SequenceCache]) -> int:
        """Return the blocks that can be taken once the sequences of ``caches`` are gone."""
        held = (cache.tables[self.index][cache.begins[self.index] :] for cache in caches)
        counts = Counter(chain.from_iterable(held)).items()
        freed = (self.pool.ref_count(block) == count + (block in self.nodes) for block, count in counts)
        return self.available + sum(freed)

    def acquire(self, block: int) -> int:
        """Add a reference to a block of the tree, and return it."""
        self.evictable.pop(block, None)
        self.pool.acquire(block)
        return block

    def release(self, blocks: Tokens[int]) -> None:
        """Drop one reference to each of a sequence's ``blocks``, given in the sequence's order."""
        for block in reversed(blocks):
            if self.pool.release(block) == 1 and block in self.nodes:
                self.evictable[block] = None


class PrefixTree:
    """Blocks of all groups, and the tree that finds them again by their tokens.

    Attributes:
        insertions: number of blocks that were inserted.
    """

    def __init__(self, groups: list[GroupBlocks], states: StateSlots, block_tokens: int) -> None:
        self.groups, self.states = groups, states
        self.block_tokens = block_tokens
        self.root = Node(None, (), [])
        self.insertions = 0

    def take(self, group: GroupBlocks) -> int:
        """Return a block with one reference, evicting the least recently used one if none is free."""
        if not group.pool.free:
            self._evict(group)
        return group.pool.take()

    def root_of(self, salt: int) -> Node:
        """Return the root of the prefixes that requests of one salt share; without a salt, the tree's.

        It is removed like any node when nothing is left below it. No block's key is negative.
        """
        if not salt:
            return self.root
        key = (-salt,)
        if (node := self.root.children.get(key)) is None:
            node = self.root.children[key] = Node(self.root, key, [])
        return node

    def find(self, parent: Node, tokens: Tokens[int], start: int) -> Node | None:
        """Return the node after ``parent`` that holds the block of ``tokens`` beginning at ``start``."""
        if not parent.children:
            return None
        return parent.children.get(tuple(tokens[start : start + self.block_tokens]))

    def insert(self, parent: Node, tokens: tuple[int, ...], blocks: Tokens[int]) -> Node:
        """Insert computed blocks, one a group, after ``parent``, to which the caller refers too.

        Returns:
            The node. Where it has other blocks than ``blocks``, because another sequence came first, the
            caller's references have moved to those.
        """
        node = parent.children.get(tokens)
        if node is None:
            node = parent.children[tokens] = Node(parent, tokens, [-1] * len(self.groups))
        for group, block in zip(self.groups, blocks, strict=True):
            known = node.blocks[group.index]
            if known < 0:
                self.insertions += 1
                node.blocks[group.index] = block
                group.nodes[block] = node
                group.pool.acquire(block)
            elif known != block:
                group.acquire(known)
                group.pool.release(block)
        return node

    def take_snapshot(self) -> int:
        """Return a slot for a snapshot, evicting the one that saves the least work; -1: all are in use."""
        if not self.states.free_snapshots:
            node = self.states.evict()
            if node is None:
                return -1
            self.prune(node)
        return self.states.take_snapshot()

    def drop_snapshot(self, node: Node) -> None:
        """Take the snapshot, if there is one, from ``node``."""
        self.states.drop(node)
        self.prune(node)

    def move_cursor(self, old: Node, new: Node) -> None:
        """Move a sequence's cursor to ``new``, its last published block."""
        new.cursors += 1
        self.leave(old)

    def leave(self, node: Node) -> None:
        """Take a sequence's cursor from ``node``."""
        node.cursors -= 1
        self.prune(node)

    def prune(self, node: Node) -> None:
        """Remove ``node``, and then nodes above it, if it has no blocks, snapshot, children or cursors."""
        while node.parent is not None and not (node.children or node.cursors or node.snapshot >= 0):
            if any(block >= 0 for block in node.blocks):
                return
            if node.parent.children.get(node.tokens) is node:
                del node.parent.children[node.tokens]
            node = node.parent

    def clear(self) -> None:
        """Make all that was inserted unreachable (after a step with unsound results)."""
        self.states.drop_all()
        for group in self.groups:
            while group.evictable:
                self._evict(group)
        self.root.children.clear()

    def _evict(self, group: GroupBlocks) -> None:
        block, _ = group.evictable.popitem(last=False)
        node = group.nodes.pop(block)
        node.blocks[group.index] = -1
        group.pool.release(block)
        if group.window is None:
            assert not node.children, f"block {block} was evictable before its children"
            self._drop_rest(node)
        self.prune(node)

    def _drop_rest(self, node: Node) -> None:
        """Drop the snapshot, and the blocks of other groups, of a node that no hit reaches any more."""
        self.states.evict_with_blocks(node)
        for group in self.groups:
            block = node.blocks[group.index]
            if block >= 0:
                node.blocks[group.index] = -1
                del group.nodes[block]
                group.evictable.pop(block, None)
                group.pool.release(block)
