"""Slots of recurrent state: one for each running sequence, and snapshots for the prefix tree.

Pure: a slot is a number here; its bytes are :mod:`wisp_runtime.layers.cache`'s. A snapshot is taken where a
step ends at the end of a block, and hangs on that block's node. There is a fixed number of them. When all are
taken the least recently used one is evicted, unless a step that is yet to be planned copies from it; if all
are in use, no snapshot is taken.
"""

from __future__ import annotations

from collections import OrderedDict

from wisp_runtime.engine.cache.blocks import BlockPool
from wisp_runtime.engine.cache.node import Node


class StateSlots:
    """Slots ``0 … sequences - 1`` of sequences, then ``snapshots`` more."""

    def __init__(self, sequences: int, snapshots: int) -> None:
        self._own, self._snapshots = BlockPool(sequences), BlockPool(snapshots)
        self._first = sequences
        self._nodes: OrderedDict[int, Node] = OrderedDict()

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
        return self._first + self._snapshots.take()

    def oldest_unused(self) -> Node | None:
        """Return the node of the snapshot to evict next; None if all are in use."""
        unused = (slot for slot in self._nodes if self._snapshots.ref_count(slot - self._first) == 1)
        slot = next(unused, None)
        return None if slot is None else self._nodes[slot]

    def attach(self, slot: int, node: Node) -> None:
        """Hang a snapshot on its node; if that has one, it is kept and ``slot`` released."""
        if node.snapshot >= 0:
            self.release_snapshot(slot)
            return
        node.snapshot = slot
        self._nodes[slot] = node

    def acquire(self, node: Node) -> int:
        """Keep a node's snapshot from eviction until :meth:`release_snapshot`, and return its slot."""
        self._nodes.move_to_end(node.snapshot)
        self._snapshots.acquire(node.snapshot - self._first)
        return node.snapshot

    def release_snapshot(self, slot: int) -> None:
        """Drop one reference to a snapshot."""
        self._snapshots.release(slot - self._first)

    def drop(self, node: Node) -> None:
        """Take the snapshot, if there is one, from ``node``."""
        if node.snapshot >= 0:
            del self._nodes[node.snapshot]
            self.release_snapshot(node.snapshot)
            node.snapshot = -1

    def drop_all(self) -> None:
        """Take the snapshots from all nodes."""
        for node in list(self._nodes.values()):
            self.drop(node)
