"""A CUDA stream (:mod:`wisp_runtime.ops.protocol.stream`): CuPy's memory and copies, the driver's graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import cupy as cp
import numpy as np
from cuda.bindings import driver as cu

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.driver import ok, translate

T = TypeVar("T")
_runtime = cp.cuda.runtime
# Nothing else of this process calls the driver meanwhile, but a library's thread might.
_THIS_THREAD = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class CudaStream:
    """One CUDA stream.

    Args:
        stream: a CuPy stream; everything runs on it.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._ptr = int(stream.ptr)
        self._handle = cu.CUstream(self._ptr)

    def host_memory(self, size_bytes: int) -> Array:
        """Allocate ``[size_bytes]`` uint8 of page-locked host memory, zeroed."""
        memory = cp.cuda.alloc_pinned_memory(size_bytes)
        array = np.frombuffer(memory, np.uint8, size_bytes)  # holds on to ``memory``
        array[:] = 0
        return array

    def device_memory(self, size_bytes: int) -> Array:
        """Allocate ``[size_bytes]`` uint8 of device memory, zeroed."""
        array = cp.empty(size_bytes, np.uint8)
        array.data.memset_async(0, size_bytes, self._stream)
        return array

    def upload(self, device: Array, host: Array) -> None:
        """Copy page-locked ``host`` to ``device``."""
        _runtime.memcpyAsync(
            device.data.ptr, _address(host), host.nbytes, _runtime.memcpyHostToDevice, self._ptr
        )

    def upload_rows(self, device: Array, host: Array) -> None:
        """Copy ``[R, C]`` of page-locked memory to the device, row by row."""
        rows, columns = host.shape
        _runtime.memcpy2DAsync(
            device.data.ptr,
            device.strides[0],
            _address(host),
            host.strides[0],
            columns * host.itemsize,
            rows,
            _runtime.memcpyHostToDevice,
            self._ptr,
        )

    def download(self, host: Array, device: Array) -> None:
        """Copy ``device`` to page-locked ``host``."""
        _runtime.memcpyAsync(
            _address(host), device.data.ptr, device.nbytes, _runtime.memcpyDeviceToHost, self._ptr
        )

    def event(self) -> CudaEvent:
        """Make an event."""
        return CudaEvent(self._stream)

    def translate_errors(self, doing: str) -> AbstractContextManager[None]:
        """Raise CUDA's errors inside the block as ours; see :func:`.driver.translate`."""
        return translate(doing)

    def capture(self, body: Callable[[], T]) -> tuple[CudaGraph, T]:
        """Capture the launches of ``body`` as a graph."""
        doing = "capturing a step"
        ok(cu.cuStreamBeginCapture(self._handle, _THIS_THREAD), doing)
        try:
            result = body()
        except BaseException:
            _, graph = cu.cuStreamEndCapture(self._handle)  # the error that counts is on its way
            if graph:
                cu.cuGraphDestroy(graph)
            raise
        graph = ok(cu.cuStreamEndCapture(self._handle), doing)
        return CudaGraph(graph, self._handle), result


class CudaEvent:
    """A point on a stream. A thread that waits for it sleeps: the server needs the CPU meanwhile."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._event = cp.cuda.Event(block=True, disable_timing=True)

    def record(self) -> None:
        """Put the event behind all that was launched so far."""
        self._event.record(self._stream)

    def synchronize(self) -> None:
        """Wait until the device has passed the event."""
        self._event.synchronize()


class CudaGraph:
    """A captured graph, ready to launch; lives as long as the process."""

    def __init__(self, graph: Any, stream: Any) -> None:
        doing = "preparing a captured step"
        self.graph, self._stream = graph, stream
        self._ready = ok(cu.cuGraphInstantiate(graph, 0), doing)
        ok(cu.cuGraphUpload(self._ready, stream), doing)

    def launch(self) -> None:
        """Launch everything that was captured, programmatic edges included."""
        (code,) = cu.cuGraphLaunch(self._ready, self._stream)
        if code:
            ok((code,), "launching a captured step")

    def edges(self) -> tuple[int, int]:
        """Return how many edges the graph has, and how many of them are programmatic."""
        doing = "asking for a graph's edges"
        count = ok(cu.cuGraphGetEdges(self.graph, 0), doing)[-1]
        *_, data, count = ok(cu.cuGraphGetEdges(self.graph, count), doing)
        programmatic = cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
        return int(count), sum(int(edge.type) == int(programmatic) for edge in data)


def _address(host: Array) -> int:
    return int(host.__array_interface__["data"][0])
