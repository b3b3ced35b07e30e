"""Uploader over a few buffers that a device empties asynchronously, so that reading and copying overlap.

Pure: the device's side is a :class:`CopyEngine`; ``copy_engine.py`` beside this makes one of CUDA's copies.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Protocol

from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.protocol.weights.upload import Fill, QuantizedRows, WeightDestination


class CopyEngine(Protocol):
    """Buffers on the host, and asynchronous copies from each of them to the device.

    Attributes:
        buffers: ``[bytes]`` uint8 each, page-aligned; allocated once :meth:`wait` was called for them.
    """

    buffers: list[Array]

    def wait(self, slot: int) -> None:
        """Wait until the last copy out of buffer ``slot`` is over."""
        ...

    def send(self, slot: int, rows: Array | QuantizedRows, destination: WeightDestination) -> None:
        """Start storing ``rows``, which lie in buffer ``slot``, at ``destination``; one call at a time."""
        ...

    def close(self) -> bool:
        """Wait until all copies are over, and free the buffers; see :meth:`.upload.WeightUploader.finish`."""
        ...


class PipelinedUploader:
    """Implementation of :class:`~wisp_runtime.ops.protocol.weights.upload.WeightUploader` over a copy engine.

    A thread that has sent a buffer goes on with another one.

    Args:
        engine: the buffers and the device.
        threads: number of threads that read at a time; fewer than buffers, so that copies overlap reads.
        chunk_bytes: bytes of rows in a buffer.
    """

    dequantized = "BF16"

    def __init__(self, engine: CopyEngine, *, threads: int, chunk_bytes: int) -> None:
        self.threads, self.chunk_bytes = threads, chunk_bytes
        self._engine = engine
        self._sending = threading.Lock()
        self._free: SimpleQueue[int] = SimpleQueue()  # the longest free first: its copy is over by now
        for slot in range(len(engine.buffers)):
            self._free.put(slot)

    def upload(self, destination: WeightDestination, read_bytes: int, fill: Fill) -> None:
        """See :meth:`.upload.WeightUploader.upload`."""
        if read_bytes > self.chunk_bytes:
            raise ShapeError(f"{read_bytes} bytes of rows at once; a buffer has {self.chunk_bytes}")
        slot = self._free.get()
        try:
            self._engine.wait(slot)
            rows = fill(self._engine.buffers[slot])
            with self._sending:
                self._engine.send(slot, rows, destination)
        finally:
            self._free.put(slot)

    def finish(self) -> bool:
        """See :meth:`.upload.WeightUploader.finish`."""
        return self._engine.close()
