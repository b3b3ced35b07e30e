"""An intake over a few buffers that a device empties behind our back, so that reading and copying overlap.

Pure: what a device does is its :class:`Carrier`; ``ops/cuda/weights/upload.py`` makes one of CUDA's copies.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Protocol

from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.protocol.upload import Fill, Place


class Carrier(Protocol):
    """Buffers on the host, and the way from each of them to the device.

    Attributes:
        buffers: ``[bytes]`` uint8 each, beginning at pages; there once :meth:`wait` was called for them.
    """

    buffers: list[Array]

    def wait(self, slot: int) -> None:
        """Wait until what was last sent from buffer ``slot`` has left it; at once if nothing was."""
        ...

    def send(self, slot: int, rows: Array, place: Place) -> None:
        """Start bringing ``rows``, uint8 and a part of buffer ``slot``, to ``place``; one call at a time."""
        ...

    def close(self) -> None:
        """Wait until all that was sent is in its place, and free the buffers."""
        ...


class RingIntake:
    """See :class:`.intake.Intake`. A thread that has sent a buffer goes on with another one.

    Args:
        carrier: the buffers and the device.
        threads: that read at a time; fewer than buffers, so that they need not wait for copies.
        piece_bytes: of rows in a buffer.
    """

    def __init__(self, carrier: Carrier, *, threads: int, piece_bytes: int) -> None:
        self.threads, self.piece_bytes = threads, piece_bytes
        self._carrier = carrier
        self._sending = threading.Lock()
        self._free: SimpleQueue[int] = SimpleQueue()  # the longest free first: its copy is over by now
        for slot in range(len(carrier.buffers)):
            self._free.put(slot)

    def put(self, place: Place, fill: Fill) -> None:
        """See :meth:`.intake.Intake.put`."""
        if place.size_bytes > self.piece_bytes:
            raise ShapeError(f"{place.size_bytes} bytes of rows at once; a buffer has {self.piece_bytes}")
        slot = self._free.get()
        try:
            self._carrier.wait(slot)
            rows = fill(self._carrier.buffers[slot])
            with self._sending:
                self._carrier.send(slot, rows, place)
        finally:
            self._free.put(slot)

    def finish(self) -> None:
        """See :meth:`.intake.Intake.finish`."""
        self._carrier.close()
