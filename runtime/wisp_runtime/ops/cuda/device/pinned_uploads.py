"""Uploads of a step's small tables through page-locked memory: the host need not wait for the stream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.stream import CudaEvent, CudaStream

_PARTS = 4
"""Uploads that may be on their way at once: a step has one a kind of layer, and two steps overlap."""


@dataclass(slots=True)
class _Part:
    memory: Array  # [bytes] uint8, page-locked
    done: CudaEvent


class PinnedUploads:
    """Copies from the host to the device on one stream, each from the next of a few page-locked parts.

    Args:
        stream: CuPy's stream.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = CudaStream(stream)
        self._parts: deque[_Part] = deque()

    def reserve(self, size_bytes: int) -> None:
        """Allocate for uploads of at most ``size_bytes``; larger ones allocate anew when they come."""
        self._parts = deque(self._part(size_bytes) for _ in range(_PARTS))

    def upload(self, device: Array, host: Array) -> None:
        """Enqueue the copy of ``host`` to ``device``, both contiguous; ``host`` may change at once."""
        data = host.reshape(-1).view(np.uint8)
        part = self._next(len(data))
        part.memory[: len(data)] = data
        self._stream.upload(device, part.memory[: len(data)])
        part.done.record()

    def _next(self, size_bytes: int) -> _Part:
        """Return the part that was used longest ago, once its copy has ended."""
        if not self._parts:
            self.reserve(size_bytes)
        part = self._parts.popleft()
        part.done.synchronize()
        if len(part.memory) < size_bytes:
            part = self._part(size_bytes)
        self._parts.append(part)
        return part

    def _part(self, size_bytes: int) -> _Part:
        return _Part(self._stream.host_memory(size_bytes), self._stream.event())
