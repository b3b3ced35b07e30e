"""The stream of a device as a runner uses it: memory, copies, events and captured graphs, all in one order.

``ops/cuda/device/stream.py`` is CUDA's. Tests bring one that runs late, to show that nothing relies on
running early.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from wisp_runtime.batch import Array

T = TypeVar("T")


class Event(Protocol):
    """A point on the stream that the host can wait for. One that was never recorded is passed already."""

    def record(self) -> None:
        """Put the event behind all work that was launched so far."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has passed the event."""
        ...


class CapturedGraph(Protocol):
    """Captured work, to run again as one launch."""

    def launch(self) -> None:
        """Run it again, after all work that was launched so far."""
        ...


class Stream(Protocol):
    """One stream: work runs in the order of its launches, and later than the call."""

    def host_memory(self, size_bytes: int) -> Array:
        """Allocate ``[size_bytes]`` uint8 of page-locked host memory, zeroed, a NumPy array."""
        ...

    def device_memory(self, size_bytes: int) -> Array:
        """Allocate ``[size_bytes]`` uint8 of device memory, zeroed, 256 bytes aligned."""
        ...

    def upload(self, device: Array, host: Array) -> None:
        """Copy page-locked ``host`` to ``device``, both contiguous and as many bytes."""
        ...

    def upload_rows(self, device: Array, host: Array) -> None:
        """Copy ``[R, C]`` of page-locked memory to the device; each row is contiguous in both."""
        ...

    def download(self, host: Array, device: Array) -> None:
        """Copy ``device`` to page-locked ``host``, both contiguous and as many bytes."""
        ...

    def event(self) -> Event:
        """Make an event."""
        ...

    def capture(self, body: Callable[[], T]) -> tuple[CapturedGraph, T]:
        """Capture the launches of ``body`` instead of running them; also return what ``body`` returned."""
        ...

    def translate_errors(self, doing: str) -> AbstractContextManager[None]:
        """Raise the device's errors inside the block as RuntimeFailures; ``doing`` begins their message."""
        ...
