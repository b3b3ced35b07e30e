"""Snapshots of recurrent state: positions at which a sequence leaves them, and which of them stay.

Positions are multiples of a stride of tokens: of a block, whose node they hang on, and of the chunk in which
kernels compute a recurrence, so that a prompt's tokens are computed in the same chunks whether its beginning
was found or not. A step leaves a snapshot where it ends at such a position; a prompt's steps do unless they
end the prompt. The rules:

1. Of the snapshots that a sequence leaves on its way, in its prompt or its answer, the newest alone stays: it
   is the end of the turn when the sequence ends. One that another sequence has begun from stays too.
2. Where a prompt leaves a path that another sequence has computed before it, the state is wanted again:
   its second visitor ends a step there, and that snapshot stays.
3. A sequence that found others' tokens is a turn of a conversation, or a common beginning. It ends a step at
   the last position before its prompt's end too, and that snapshot stays.
4. A step is ended early only for a snapshot that saves :data:`MIN_SAVED_STRIDES` strides of tokens over the
   one before it: a step more costs as much as some hundred tokens.
5. A prompt that nothing was found of ends a step at the last position before its end as well, if it has
   :data:`MIN_FIRST_STRIDES` strides of tokens and a slot is free: memory that would lie idle then makes its
   first repeat a hit. Such a snapshot evicts no other, and counts as unused until a sequence begins from it.

Source: Marconi, Pan et al. 2024, arXiv:2411.19379, section 4.1: prefixes are admitted when they recur, and
conversations at their end. Decision 0019 has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator

from wisp_runtime.engine.cache.node import Node
from wisp_runtime.engine.cache.prefix_tree import PrefixTree
from wisp_runtime.engine.cache.sequence_cache import SequenceCache
from wisp_runtime.engine.transport.messages import StateLoad

MIN_SAVED_STRIDES = 4

MIN_FIRST_STRIDES = 32
"""Strides of a prompt of which a step more is a tenth or less."""


class Snapshots:
    """Snapshots that sequences leave in a prefix tree.

    Args:
        tree: the tree, with the slots.
        stride: tokens between positions, a multiple of a block.

    Attributes:
        hits: sequences that began from a snapshot.
        misses: sequences that began anew though a stride of their tokens or more was in the tree.
    """

    def __init__(self, tree: PrefixTree, stride: int) -> None:
        self._tree, self._states, self._stride = tree, tree.states, stride
        self.hits = self.misses = 0

    @property
    def load(self) -> StateLoad:
        """Counts of states and snapshots."""
        states = self._states
        return StateLoad(
            slots_used=states.sequences - states.free,
            slots_total=states.sequences,
            snapshots_used=states.snapshots - states.free_snapshots,
            snapshots_total=states.snapshots,
            hits_total=self.hits,
            misses_total=self.misses,
            evictions_total=states.evictions,
        )

    def begin(self, cache: SequenceCache, length: int) -> None:
        """Count a sequence of ``length`` tokens that was admitted; rule 5."""
        self.hits += cache.restore_slot >= 0
        self.misses += cache.restore_slot < 0 and cache.shared_tokens >= self._stride
        last = min(length - 1, cache.reusable_tokens) // self._stride * self._stride
        is_first = cache.node is not None and cache.restore_slot < 0 and not cache.stops
        if is_first and last >= MIN_FIRST_STRIDES * self._stride and self._states.free_snapshots:
            cache.spare_stop = last

    def visit(self, cache: SequenceCache, shared: int, found: int, length: int) -> None:
        """Note that ``shared`` leading tokens of a sequence are in the tree, and choose where its steps end.

        Args:
            found: tokens that need not be computed.
            length: tokens of the sequence.
        """
        if shared > cache.shared_tokens:
            cache.shared_tokens, cache.spare_stop = shared, 0
            cache.stops = tuple(self._stops(shared, found, length))

    def align(self, cache: SequenceCache, start: int, tokens: int, length: int) -> int:
        """Shorten a chunk of ``tokens`` tokens from ``start`` to a stop, or to a position of the stride.

        Args:
            length: tokens of the sequence; a chunk that ends with the last of them needs no position.
        """
        spare = cache.spare_stop if self._states.free_snapshots else 0
        stops = cache.stops or (spare,)
        end = next((stop for stop in stops if start < stop < start + tokens), start + tokens)
        aligned = end if end == length else end // self._stride * self._stride
        return (aligned if aligned > start else end) - start

    def take(self, cache: SequenceCache, end: int) -> int:
        """Return the slot for a snapshot of the state after ``end`` tokens; -1: none is taken."""
        if cache.node is None or end % self._stride or end > cache.reusable_tokens:
            return -1
        if end == cache.spare_stop and not self._states.free_snapshots:
            return -1
        slot = self._tree.take_snapshot()
        if slot >= 0:
            cache.snapshots[end] = slot
        return slot

    def attach(self, cache: SequenceCache, node: Node, tokens: int) -> None:
        """Hang the snapshot that was taken after ``tokens`` tokens, if any, on ``node``."""
        slot = cache.snapshots.pop(tokens, -1)
        if slot < 0:
            return
        is_spare = tokens == cache.spare_stop
        self._states.attach(slot, node, tokens, uses=int(not is_spare))
        if node.snapshot != slot or tokens in cache.stops or is_spare:
            return
        if cache.passing is not None and self._states.is_unused(*cache.passing):
            self._tree.drop_snapshot(cache.passing[1])
        cache.passing = slot, node

    def _stops(self, shared: int, found: int, length: int) -> Iterator[int]:
        """Yield the positions at which steps of a sequence end, ascending; rules 2 to 4."""
        last = found
        for position in (shared, length - 1):
            stop = position // self._stride * self._stride
            if stop - last >= MIN_SAVED_STRIDES * self._stride:
                yield stop
                last = stop
