"""CUDA events around kernel launches, and filler work that keeps the GPU busy while a step is launched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import cupy as cp

from wisp_runtime.bench.profile.trace import Tracer
from wisp_runtime.bench.target import Target
from wisp_runtime.ops.cuda.device.kernels import Kernel

_BUSY_BYTES = 256 << 20
_BUSY_SETS = 300  # about 60 µs each on an H200, 18 ms in all: longer than a traced step takes to launch


class EventClock:
    """Clock of CUDA events on the current stream, which is the device's."""

    def __init__(self) -> None:
        self._memory = cp.empty(_BUSY_BYTES, cp.uint8)

    def prepare(self) -> None:
        """Queue writes to unused memory."""
        for _ in range(_BUSY_SETS):
            self._memory.data.memset_async(0, self._memory.nbytes)

    def mark(self) -> Any:
        """Record an event."""
        event = cp.cuda.Event()
        event.record()
        return event

    def ms(self, begin: Any, end: Any) -> float:
        """Return the milliseconds between two events."""
        return float(cp.cuda.get_elapsed_time(begin, end))

    def synchronize(self) -> None:
        """Synchronize the current stream."""
        cp.cuda.get_current_stream().synchronize()


@contextmanager
def watched_launches(target: Target, tracer: Tracer) -> Iterator[None]:
    """Report every launch inside the block to ``tracer``, and replay no graph meanwhile."""
    kernel_class, graphs = cast(Any, Kernel), cast(Any, target.runner).graphs
    launch = kernel_class.launch
    captures = graphs.captures

    def watched(kernel: Any, *args: Any, **keywords: Any) -> None:
        tracer.timed(kernel.name, lambda: launch(kernel, *args, **keywords))

    tracer.clock, tracer.sees_kernels, graphs.captures = EventClock(), True, False
    kernel_class.launch = watched
    try:
        yield
    finally:
        kernel_class.launch, graphs.captures = launch, captures
