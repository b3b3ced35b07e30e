"""Slots of recurrent state: one for each running sequence, and snapshots for the prefix tree.

Pure: a slot is a number here; its bytes are :mod:`wisp_runtime.layers.cache`'s. There is a fixed number of
snapshots. When all are taken the one that saves the least work goes, unless a step that is yet to be planned
copies from it; if all are in use, no snapshot is taken.

The work that a snapshot saves is the tokens since the nearest snapshot before it, once for each use; all take
equally many bytes. A clock ages them: it is set to the priority of each evicted one, and the priority of a
snapshot is the clock of its last use plus the work. So one that saves much outlives those that save little,
but not forever.

Source: GreedyDual-Size with frequency, Cao & Irani 1997 (USENIX Symposium on Internet Technologies and
Systems); work a byte as in Marconi, Pan et al. 2024, arXiv:2411.19379, section 4.2.
"""

from __future__ import annotations

from wisp_runtime.engine.cache.blocks import BlockPool
from wisp_runtime.engine.cache.node import Node


class Snapshot:
    """State at the end of a node.

    Attributes:
        node: the node.
        tokens: tokens that the state is after.
        base: nearest snapshot before it on the node's path, if any.
        uses: sequences that have begun from it, and the one that left it, unless that took spare memory.
        touched: clock at the last use.
    """

    __slots__ = ("base", "node", "tokens", "touched", "uses")

    def __init__(self, node: Node, tokens: int, base: Snapshot | None, touched: int, uses: int) -> None:
        self.node, self.tokens, self.base = node, tokens, base
        self.uses, self.touched = uses, touched

    @property
    def priority(self) -> int:
        """Clock at which it is evicted, in tokens."""
        return self.touched + self.uses * (self.tokens - (self.base.tokens if self.base else 0))


class StateSlots:
    """Slots ``0 … sequences - 1`` of sequences, then ``snapshots`` more.

    A snapshot leaves the cache by the policy of :meth:`evict`; along with its node's block of a group without
    a window, when that is evicted (:meth:`.prefix_tree.PrefixTree.take`); when its sequence leaves a newer
    one (:meth:`.snapshots.Snapshots.attach`); and with all others after a step with unsound results. The
    latter two are no evictions.

    Attributes:
        evictions: snapshots that gave way to others, or went along with their blocks.
    """

    def __init__(self, sequences: int, snapshots: int) -> None:
        self.sequences, self.snapshots = sequences, snapshots
        self._own, self._snapshots = BlockPool(sequences), BlockPool(snapshots)
        self._held: dict[int, Snapshot] = {}
        self._clock = self.evictions = 0

    @property
    def free(self) -> int:
        """Sequences that can get a slot now."""
        return self._own.free

    @property
    def free_snapshots(self) -> int:
        """Slots of snapshots that are not used."""
        return self._snapshots.free

    def take(self) -> int:
        """Return the slot of a sequence. There must be one."""
        return self._own.take()

    def release(self, slot: int) -> None:
        """Release the slot of a sequence."""
        self._own.release(slot)

    def take_snapshot(self) -> int:
        """Return a slot for a snapshot. There must be one."""
        return self.sequences + self._snapshots.take()

    def evict(self) -> Node | None:
        """Take the snapshot that saves the least work from its node; return that, None if all are in use."""
        unused = (
            snapshot
            for slot, snapshot in self._held.items()
            if self._snapshots.ref_count(slot - self.sequences) == 1
        )
        least = min(unused, key=lambda snapshot: snapshot.priority, default=None)
        if least is None:
            return None
        self._clock = max(self._clock, least.priority)
        self.evictions += 1
        self.drop(least.node)
        return least.node

    def evict_with_blocks(self, node: Node) -> None:
        """Take the snapshot, if there is one, from a node that no hit reaches any more."""
        self.evictions += node.snapshot >= 0
        self.drop(node)

    def attach(self, slot: int, node: Node, tokens: int, uses: int = 1) -> None:
        """Hang a snapshot after ``tokens`` tokens on its node; if that has one, ``slot`` is released.

        Args:
            uses: 0 if it only fills spare memory.
        """
        if node.snapshot >= 0:
            self.release_snapshot(slot)
            return
        above = _nearest(node.parent)
        base = self._held[above.snapshot] if above else None
        snapshot = Snapshot(node, tokens, base, self._clock, uses)
        node.snapshot = slot
        if node.children:
            for below in self._held.values():
                if below.base is snapshot.base and _nearest(below.node.parent) is node:
                    below.base = snapshot
        self._held[slot] = snapshot

    def acquire(self, node: Node) -> int:
        """Keep a node's snapshot from eviction until :meth:`release_snapshot`, and return its slot."""
        self._snapshots.acquire(node.snapshot - self.sequences)
        return node.snapshot

    def touch(self, slot: int) -> None:
        """Count a use of a snapshot, if it is still in the tree."""
        if (snapshot := self._held.get(slot)) is not None:
            snapshot.uses += 1
            snapshot.touched = self._clock

    def is_unused(self, slot: int, node: Node) -> bool:
        """Return whether ``node`` has the snapshot in ``slot``, and no sequence has begun from it."""
        return node.snapshot == slot and self._held[slot].uses == 1

    def release_snapshot(self, slot: int) -> None:
        """Drop one reference to a snapshot."""
        self._snapshots.release(slot - self.sequences)

    def drop(self, node: Node) -> None:
        """Take the snapshot, if there is one, from ``node``."""
        if node.snapshot < 0:
            return
        dropped = self._held.pop(node.snapshot)
        for below in self._held.values():
            if below.base is dropped:
                below.base = dropped.base
        self.release_snapshot(node.snapshot)
        node.snapshot = -1

    def drop_all(self) -> None:
        """Take the snapshots from all nodes."""
        for snapshot in list(self._held.values()):
            self.drop(snapshot.node)


def _nearest(node: Node | None) -> Node | None:
    """Return the nearest node from ``node`` up that has a snapshot; None: there is none."""
    while node is not None and node.snapshot < 0:
        node = node.parent
    return node
