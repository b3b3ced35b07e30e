"""Blocks and state slots of one sequence."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from wisp_plan.memory.cache import CacheSizes
from wisp_runtime.engine.cache.blocks import blocks_for
from wisp_runtime.engine.cache.node import Node


class SequenceCache:
    """Blocks and slots that a running sequence refers to; :class:`.manager.CacheManager` changes them.

    Attributes:
        tables: block table of each paged group, by position in the sequence (int32, so that packing copies it
            as memory). A table grows in place; where an entry is replaced the array is a new one, so that a
            copy can be kept up to date. Entries of blocks that were given back stay, and are never read.
        begins: leading entries of each table whose blocks were given back.
        covered_tokens: tokens that every table has blocks for.
        node: node of the last block that is in the prefix tree; None if the sequence takes no part in it.
        cached_blocks: leading blocks that are in the prefix tree, or were.
        reusable_tokens: leading tokens that may be in the prefix tree.
        state_slot: slot of its recurrent state; -1: none.
        restore_slot: snapshot that its state is to be copied from before its next chunk; -1: none.
        snapshots: snapshots of its state that no node has yet, by the tokens they are after.
        passing: slot and node of the newest snapshot that it left on its way.
        shared_tokens: leading tokens that were in the prefix tree before the sequence computed them.
        stops: positions at which its steps end for the sake of a snapshot, ascending.
        spare_stop: such a position where the snapshot only fills spare memory; 0: none.
    """

    __slots__ = (
        "begins",
        "cached_blocks",
        "covered_tokens",
        "node",
        "passing",
        "restore_slot",
        "reusable_tokens",
        "shared_tokens",
        "snapshots",
        "spare_stop",
        "state_slot",
        "stops",
        "tables",
    )

    def __init__(self, groups: int = 1, node: Node | None = None, reusable_tokens: int = 0) -> None:
        self.tables = [array("i") for _ in range(groups)]
        self.begins = [0] * groups
        self.covered_tokens = self.cached_blocks = 0
        self.node, self.reusable_tokens = node, reusable_tokens
        self.state_slot = self.restore_slot = -1
        self.snapshots: dict[int, int] = {}
        self.passing: tuple[int, Node] | None = None
        self.shared_tokens = self.spare_stop = 0
        self.stops: tuple[int, ...] = ()

    @classmethod
    def of_blocks(cls, blocks: Sequence[int], groups: int = 1) -> SequenceCache:
        """Return the cache of a sequence with ``blocks`` of each group, shared or not."""
        cache = cls(groups)
        for table in cache.tables:
            table.extend(blocks)
        return cache

    def replace(self, group: int, index: int, block: int) -> None:
        """Replace the block at ``index``."""
        self.tables[group] = self.tables[group][:]
        self.tables[group][index] = block


def scratch_cache(sizes: CacheSizes, tokens: int) -> SequenceCache:
    """Return the cache of a sequence of ``tokens`` tokens in the first blocks, shared or not.

    For steps before the first request, whose results mean nothing.
    """
    cache = SequenceCache(len(sizes.pools))
    for table, pool in zip(cache.tables, sizes.pools, strict=True):
        table.extend(block % pool.blocks for block in range(blocks_for(tokens, sizes.block_tokens)))
    cache.state_slot = 0 if sizes.states else -1
    return cache
