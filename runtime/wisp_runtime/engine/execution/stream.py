"""What the device runner needs of a GPU's stream: memory, copies, marks and recordings, all in one order.

:mod:`.stream` has the real one. Tests bring one that runs late, to see that nothing relies on running early.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from wisp_runtime.batch import Array

T = TypeVar("T")


class Mark(Protocol):
    """A point on the stream that the host can wait for. One that was never set is passed already."""

    def set(self) -> None:
        """Put the mark behind all that was asked for so far."""
        ...

    def wait(self) -> None:
        """Wait until the device has passed the mark."""
        ...


class Recording(Protocol):
    """Work that was recorded, to run again as one launch."""

    def launch(self) -> None:
        """Run it again, after all that was asked for so far."""
        ...


class Lane(Protocol):
    """One stream. Whatever is asked of it runs after what was asked before, and later than the call."""

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

    def mark(self) -> Mark:
        """Make a mark."""
        ...

    def record(self, body: Callable[[], T]) -> tuple[Recording, T]:
        """Record what ``body`` asks for instead of running it; also return what ``body`` returned."""
        ...
