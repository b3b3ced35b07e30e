"""Cache of all sequences: blocks of every paged group, slots of recurrent state, prefix tree over both.

Pure. The scheduler asks it for blocks and never counts them itself. The rules:

1. A sequence is admitted with blocks for all its tokens; of a group with a window, for those that its first
   step may compute. Tables grow chunk by chunk after that (:meth:`CacheManager.extend`).
2. Before a table grows, blocks behind the window of the next token are given back, as soon as they are in the
   prefix tree (if they will ever be): a later block is found only through the earlier ones.
3. A prefix of n tokens is a hit if every group can go on from there: without a window it needs all blocks,
   with one those that token n sees, and a recurrent state needs a snapshot after exactly n tokens.
4. Snapshots are taken where steps end, and :meth:`CacheManager.align` chooses where those of a prompt do:
   the rules are :mod:`.snapshots`'.

The device copies states in the order of the steps: from a snapshot before a step's forward pass, to a
snapshot after it. So a slot may be released, and taken by a later plan, while a launched step uses it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence as Tokens
from operator import gt, le

from wisp_plan.memory.cache import CacheSizes
from wisp_runtime.engine.cache.blocks import blocks_for
from wisp_runtime.engine.cache.node import Node
from wisp_runtime.engine.cache.prefix_tree import GroupBlocks, PrefixTree
from wisp_runtime.engine.cache.sequence_cache import SequenceCache
from wisp_runtime.engine.cache.snapshots import Snapshots
from wisp_runtime.engine.cache.state_slots import StateSlots
from wisp_runtime.engine.transport.messages import StateLoad

_UNBOUNDED = sys.maxsize


class CacheManager:
    """Cache of one engine.

    Args:
        sizes: numbers of blocks and slots.
        max_step_tokens: tokens a step may compute.

    Attributes:
        has_states: whether any layer has a recurrent state.
        states, snapshots: slots of states, and the snapshots that sequences leave.
    """

    def __init__(self, sizes: CacheSizes, max_step_tokens: int) -> None:
        self._size, self._max_step_tokens = sizes.block_tokens, max_step_tokens
        self.groups = [
            GroupBlocks(index, pool.blocks, pool.group.spec.window) for index, pool in enumerate(sizes.pools)
        ]
        self._has_windows = any(group.window is not None for group in self.groups)
        self.has_states = bool(sizes.states)
        self.states = StateSlots(sizes.state_slots, sizes.snapshots)
        self.tree = PrefixTree(self.groups, self.states, sizes.block_tokens)
        self.snapshots = Snapshots(self.tree, sizes.stride)
        self.total_blocks = sum(pool.blocks for pool in sizes.pools)

    @property
    def available(self) -> tuple[int, ...]:
        """Blocks of each group that can be taken now: free, or evictable."""
        return tuple(group.available for group in self.groups)

    @property
    def used_blocks(self) -> int:
        """Blocks that sequences refer to."""
        return self.total_blocks - sum(self.available)

    @property
    def state_load(self) -> StateLoad | None:
        """Counts of states and snapshots; None where no layer has a recurrent state."""
        return self.snapshots.load if self.has_states else None

    def admit(
        self,
        tokens: Tokens[int],
        *,
        reusable_tokens: int,
        spare_blocks: int | None,
        salt: int = 0,
    ) -> SequenceCache | None:
        """Return the cache of a sequence that begins, with blocks of the prefix tree as far as possible.

        Args:
            tokens: tokens of the sequence.
            reusable_tokens: leading tokens that may be found in, or inserted into, the prefix tree; 0: the
                sequence takes no part in it.
            spare_blocks: blocks of each group to leave for other sequences; None: there are none.
            salt: number whose sequences share their prefixes with no others; 0: none.

        Returns:
            None if there are not enough blocks.
        """
        cache, missing = self._begin(tokens, reusable_tokens, salt)
        left = [blocks - (spare_blocks or 0) for blocks in self.available]
        if spare_blocks is not None and any(map(gt, missing, left)):
            self.release(cache)
            return None
        for group, table, count in zip(self.groups, cache.tables, missing, strict=True):
            table.extend(self.tree.take(group) for _ in range(count))
        self._cover(cache)
        if self.has_states:
            cache.state_slot = self.states.take()
            self.snapshots.begin(cache, len(tokens))
        return cache

    def fits(
        self, tokens: Tokens[int], reusable: int, spare_blocks: int, salt: int, without: Tokens[SequenceCache]
    ) -> bool:
        """Return whether :meth:`admit` has enough blocks once the sequences ``without`` are gone."""
        cache, missing = self._begin(tokens, reusable, salt)
        left = [group.available_without(without) - spare_blocks for group in self.groups]
        self.release(cache)
        return all(map(le, missing, left))

    def extend(self, cache: SequenceCache, start: int, end: int) -> bool:
        """Extend the tables to ``end`` tokens; the next token to compute is at ``start``.

        Returns:
            False if there are not enough blocks; the tables then reach as far as those suffice.
        """
        if end <= cache.covered_tokens:
            return True
        needed = blocks_for(end, self._size)
        if self._has_windows:
            self._give_back(cache, start)
        pairs = list(zip(self.groups, cache.tables, strict=True))
        count = min(needed, *(len(table) + group.available for group, table in pairs))
        for group, table in pairs:
            table.extend(self.tree.take(group) for _ in range(count - len(table)))
        self._cover(cache)
        return count == needed

    def lookup(self, cache: SequenceCache, tokens: Tokens[int]) -> int:
        """Move past the blocks of ``tokens`` that are in the prefix tree by now, all but the last token.

        Returns:
            Leading tokens that need not be computed; 0 if there is no hit beyond them.
        """
        node = cache.node
        if node is None:
            return 0
        path, hit = list[Node](), 0
        depth, size = cache.cached_blocks, self._size
        begins = list(cache.begins)  # the first index from which on every block is there
        while (depth + 1) * size < len(tokens) and (depth + 1) * size <= cache.reusable_tokens:
            child = self.tree.find(node, tokens, depth * size)
            if child is None:
                break
            node, depth = child, depth + 1
            path.append(node)
            if not self._has_windows and not self.has_states:
                hit = len(path)
                continue
            begins = [begin if node.blocks[index] >= 0 else depth for index, begin in enumerate(begins)]
            if self._continues(node, depth * size, begins):
                hit = len(path)
        if self.has_states and path:  # none of them is the sequence's own
            found = (cache.cached_blocks + hit) * size
            self.snapshots.visit(cache, depth * size, found, len(tokens))
        if not hit:
            return 0
        self._adopt(cache, path[:hit])
        return cache.cached_blocks * size

    def publish(self, cache: SequenceCache, tokens: Tokens[int], computed_tokens: int) -> None:
        """Insert the full blocks of a sequence's first ``computed_tokens`` tokens into the prefix tree.

        Args:
            tokens: tokens of the sequence, as far as they are known.
        """
        node, size = cache.node, self._size
        if node is None or (cache.cached_blocks + 1) * size > computed_tokens:
            return
        end = min(computed_tokens, len(tokens), cache.reusable_tokens)
        while (cache.cached_blocks + 1) * size <= end:
            index = cache.cached_blocks
            key = tuple(tokens[index * size : (index + 1) * size])
            new = self.tree.insert(node, key, [table[index] for table in cache.tables])
            for group, table in enumerate(cache.tables):
                if table[index] != new.blocks[group]:
                    cache.replace(group, index, new.blocks[group])
            self.tree.move_cursor(node, new)
            cache.node = node = new
            cache.cached_blocks = index + 1
            if self.has_states:
                self.snapshots.attach(cache, new, cache.cached_blocks * size)

    def align(self, cache: SequenceCache, start: int, tokens: int, length: int) -> int:
        """Shorten a chunk of a sequence of ``length`` tokens for the snapshot after it; rule 4."""
        return self.snapshots.align(cache, start, tokens, length) if self.has_states else tokens

    def take_restore(self, cache: SequenceCache) -> int:
        """Return the snapshot that the next chunk begins from; -1: none. The chunk is planned now."""
        slot, cache.restore_slot = cache.restore_slot, -1
        if slot >= 0:
            self.states.touch(slot)
            self.states.release_snapshot(slot)
        return slot

    def take_snapshot(self, cache: SequenceCache, end: int) -> int:
        """Return the slot for a snapshot of the state after a chunk that ends at ``end`` tokens; -1: none."""
        return self.snapshots.take(cache, end)

    def release(self, cache: SequenceCache) -> None:
        """Release all that a sequence refers to."""
        for group, table, begin in zip(self.groups, cache.tables, cache.begins, strict=False):
            group.release(table[begin:])
        if self.has_states:
            self._drop_restore(cache)
            for slot in cache.snapshots.values():
                self.states.release_snapshot(slot)
            if cache.state_slot >= 0:
                self.states.release(cache.state_slot)
        if cache.node is not None:
            self.tree.leave(cache.node)

    def clear(self) -> None:
        """Make all that was published unreachable (after a step with unsound results)."""
        self.tree.clear()

    def _begin(self, tokens: Tokens[int], reusable_tokens: int, salt: int) -> tuple[SequenceCache, list[int]]:
        """Return a cache with the blocks that are in the prefix tree, and how many of each group it lacks."""
        root = self.tree.root_of(salt) if reusable_tokens else None
        cache = SequenceCache(len(self.groups), root, reusable_tokens)
        if cache.node is not None:
            cache.node.cursors += 1
        computed = self.lookup(cache, tokens)
        step_end = min(len(tokens), computed + self._max_step_tokens)
        ends = [len(tokens) if group.window is None else step_end for group in self.groups]
        counts = (blocks_for(end, self._size) for end in ends)
        missing = [count - len(table) for count, table in zip(counts, cache.tables, strict=True)]
        return cache, missing

    def _first_seen(self, group: GroupBlocks, position: int) -> int:
        """Return the index of the first block that the token at ``position`` sees."""
        return 0 if group.window is None else max(0, position - group.window + 1) // self._size

    def _continues(self, node: Node, position: int, begins: list[int]) -> bool:
        """Return whether every group can go on at ``position``; each has blocks from ``begins`` on."""
        firsts = (self._first_seen(group, position) for group in self.groups)
        has_blocks = all(begin <= first for begin, first in zip(begins, firsts, strict=True))
        return has_blocks and (node.snapshot >= 0 or not self.has_states)

    def _adopt(self, cache: SequenceCache, path: list[Node]) -> None:
        """Go on after the last node of ``path``, with the tree's blocks instead of the sequence's own."""
        first, depth = cache.cached_blocks, cache.cached_blocks + len(path)
        for group in self.groups:
            seen = self._first_seen(group, depth * self._size)
            self._give_back_until(cache, group, min(seen, len(cache.tables[group.index])))
            skipped = max(0, seen - len(cache.tables[group.index]))
            cache.tables[group.index].extend([0] * skipped)  # never read
            cache.begins[group.index] = max(seen, cache.begins[group.index])
            for index in range(max(first, seen), depth):
                block = group.acquire(path[index - first].blocks[group.index])
                if index < len(cache.tables[group.index]):
                    group.release((cache.tables[group.index][index],))
                    cache.replace(group.index, index, block)
                else:
                    cache.tables[group.index].append(block)
        if self.has_states:
            self._drop_restore(cache)
            cache.restore_slot = self.states.acquire(path[-1])
        assert cache.node is not None
        self.tree.move_cursor(cache.node, path[-1])
        cache.node, cache.cached_blocks = path[-1], depth
        self._cover(cache)

    def _give_back(self, cache: SequenceCache, start: int) -> None:
        """Give back the blocks that no token from ``start`` on sees; rule 2."""
        for group in self.groups:
            end = self._first_seen(group, start)
            if cache.node is not None and cache.cached_blocks < cache.reusable_tokens // self._size:
                end = min(end, cache.cached_blocks)
            self._give_back_until(cache, group, end)

    def _give_back_until(self, cache: SequenceCache, group: GroupBlocks, end: int) -> None:
        begin = cache.begins[group.index]
        if end > begin:
            group.release(cache.tables[group.index][begin:end])
            cache.begins[group.index] = end

    def _drop_restore(self, cache: SequenceCache) -> None:
        """Release the snapshot that the next chunk was to begin from, if there is one."""
        slot, cache.restore_slot = cache.restore_slot, -1
        if slot >= 0:
            self.states.release_snapshot(slot)

    def _cover(self, cache: SequenceCache) -> None:
        shortest = min((len(table) for table in cache.tables), default=None)
        cache.covered_tokens = _UNBOUNDED if shortest is None else shortest * self._size
