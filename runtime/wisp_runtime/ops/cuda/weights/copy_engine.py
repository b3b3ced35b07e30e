"""Upload of a checkpoint's rows to the GPU: pinned memory, copies on a stream of their own, packing there.

Dependencies of each of a few buffers: reading waits for the buffer's last copy; a copy waits for the last
packing out of its staging memory on the GPU; a packing waits for its copy. So reading, copying and packing of
different buffers overlap. Buffers and staging are freed when all is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np

from wisp_plan.memory.loading import GPU_CHUNK_BYTES as CHUNK_BYTES
from wisp_plan.memory.loading import MAX_GPU_BUFFERS
from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cpu.threads import available_threads
from wisp_runtime.ops.cuda.device.arrays import BF16, to_host
from wisp_runtime.ops.cuda.device.driver import translate
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.weights.packing import pack_rows
from wisp_runtime.ops.cuda.weights.pipelined_uploader import PipelinedUploader
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage, carve, carved_bytes, pack_quantized
from wisp_runtime.ops.cuda.weights.rounding import Rounding
from wisp_runtime.ops.protocol.weights.row_permutation import interleaved_head_size, permuted_row
from wisp_runtime.ops.protocol.weights.upload import SLACK_BYTES, STORED, QuantizedRows, WeightDestination

_SLOT_BYTES = CHUNK_BYTES + SLACK_BYTES
_MIN_THREADS, _MAX_THREADS = 4, 12  # 12 read the page cache of an H200's host at 37 GB/s
_SPARE_SLOTS = 4  # being copied while all threads read
_FLAG = np.dtype(np.int32)
_DOING = "copying weights to the GPU"


def gpu_uploader(device: Gpu, total_bytes: int) -> PipelinedUploader:
    """Return an uploader of ``device`` with no more buffers than ``total_bytes`` are worth."""
    threads = min(_MAX_THREADS, max(_MIN_THREADS, available_threads()))
    slots = min(threads + _SPARE_SLOTS, MAX_GPU_BUFFERS, max(2, -(-total_bytes // CHUNK_BYTES)))
    return PipelinedUploader(CudaCopyEngine(device, slots), threads=threads, chunk_bytes=CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class _Slot:
    """Staging memory and events of a buffer.

    Attributes:
        staging: ``CHUNK_BYTES`` of the GPU's memory.
        copied: event after the last copy out of the buffer.
        packed: event after the last packing out of ``staging``.
    """

    staging: Any
    copied: Any
    packed: Any


class CudaCopyEngine:
    """Copy engine of CUDA, see :class:`wisp_runtime.ops.cuda.weights.pipelined_uploader.CopyEngine`.

    Args:
        device: GPU; its stream packs.
        slots: number of buffers, each with staging memory on the GPU.
    """

    def __init__(self, device: Gpu, slots: int) -> None:
        self._device = device
        self.buffers = [np.empty(0, np.uint8)] * slots
        with translate(f"allocating {slots} buffers of {CHUNK_BYTES} bytes for reading weights"):
            staging = cp.cuda.MemoryPointer(cp.cuda.Memory(slots * CHUNK_BYTES + _FLAG.itemsize), 0)
            self._not_finite = cp.ndarray((1,), _FLAG, staging + slots * CHUNK_BYTES)
            self._not_finite.data.memset_async(0, _FLAG.itemsize, device.stream)
            self._rounding = Rounding(device, self._not_finite)
            self._slots = [_slot(staging + slot * CHUNK_BYTES) for slot in range(slots)]
            self._stream = cp.cuda.Stream(non_blocking=True)
            self._stream.wait_event(device.stream.record())  # the arena is cleared there

    def wait(self, slot: int) -> None:
        """See :meth:`.pipelined_uploader.CopyEngine.wait`; pins a buffer on its first use."""
        with translate(_DOING):
            cp.cuda.Device(self._device.index).use()  # each thread has a current device of its own
            self._slots[slot].copied.synchronize()
            if not self.buffers[slot].size:
                self.buffers[slot] = _pinned(_SLOT_BYTES)

    def send(self, slot: int, rows: Array | QuantizedRows, destination: WeightDestination) -> None:
        """See :meth:`.pipelined_uploader.CopyEngine.send`."""
        with translate(_DOING):
            if isinstance(rows, QuantizedRows):
                self._send_quantized(self._slots[slot], rows, destination)
            elif len(destination.shape) == 2:
                self._send_rows(self._slots[slot], rows, destination)
            else:
                self._send_vector(self._slots[slot], self.buffers[slot], rows, destination)

    def close(self) -> bool:
        """See :meth:`.pipelined_uploader.CopyEngine.close`."""
        with translate(_DOING):
            self._stream.synchronize()
            self._device.stream.synchronize()
            is_finite = not to_host(self._not_finite).any()
            del self._rounding, self._not_finite
            self._slots, self.buffers = [], []
        return is_finite

    def _send_rows(self, slot: _Slot, rows: Array, destination: WeightDestination) -> None:
        self._stream.wait_event(slot.packed)
        self._copy(slot.staging.ptr, rows)
        slot.copied.record(self._stream)
        self._device.stream.wait_event(slot.copied)
        staged = cp.ndarray(destination.shape, STORED[destination.dtype], slot.staging)
        if isinstance(destination.weight, QuantizedStorage):
            self._rounding.store(staged, destination.weight, destination.first)
        else:
            pack_rows(self._device, staged, destination.weight, destination.first)
        slot.packed.record(self._device.stream)

    def _send_quantized(self, slot: _Slot, rows: QuantizedRows, destination: WeightDestination) -> None:
        shapes = [None if array is None else (array.shape, array.dtype) for array in rows.arrays]
        if carved_bytes(shapes) > CHUNK_BYTES:
            raise ShapeError(f"{carved_bytes(shapes)} bytes of rows at once; a buffer has {CHUNK_BYTES}")
        self._stream.wait_event(slot.packed)
        staged = carve(shapes, slot.staging)
        for target, array in zip(staged.arrays, rows.arrays, strict=True):
            if target is not None and array is not None:
                self._copy(target.data.ptr, array)
        slot.copied.record(self._stream)
        self._device.stream.wait_event(slot.copied)
        pack_quantized(self._device, staged, destination.weight, destination.first, self._not_finite)
        slot.packed.record(self._device.stream)

    def _send_vector(self, slot: _Slot, buffer: Array, rows: Array, destination: WeightDestination) -> None:
        """Round here, in the buffer, and copy straight to the arena: vectors are few and small."""
        held = destination.weight.dtype
        values = rows.view(STORED[destination.dtype]).astype(held)
        if size := interleaved_head_size(destination.permutation):  # whole heads: a vector is one chunk
            positions = permuted_row(np.arange(size), size, destination.permutation)
            values = values.reshape(-1, size)[:, np.argsort(positions)].reshape(-1)
        rounded = buffer[: values.nbytes]
        rounded[:] = values.view(np.uint8)
        target = destination.weight.data.ptr
        if destination.permutation == "gate_up_interleaved":
            first = permuted_row(destination.first, len(destination.weight), "gate_up_interleaved")
            self._copy_eights(target + first * BF16.itemsize, rounded)
        else:
            self._copy(target + destination.first * held.itemsize, rounded)
        slot.copied.record(self._stream)

    def _copy(self, target: int, source: Array) -> None:
        runtime = cp.cuda.runtime
        kind, stream = runtime.memcpyHostToDevice, self._stream.ptr
        runtime.memcpyAsync(target, source.ctypes.data, source.nbytes, kind, stream)

    def _copy_eights(self, target: int, source: Array) -> None:
        """Copy groups of eight numbers to every other group of the target."""
        runtime, width = cp.cuda.runtime, 8 * BF16.itemsize
        kind, stream = runtime.memcpyHostToDevice, self._stream.ptr
        height = source.nbytes // width
        runtime.memcpy2DAsync(target, 2 * width, source.ctypes.data, width, width, height, kind, stream)


def _pinned(size_bytes: int) -> Array:
    """Allocate page-locked memory, a quarter of a millisecond a MB."""
    memory = cp.cuda.PinnedMemoryPointer(cp.cuda.PinnedMemory(size_bytes), 0)
    return np.frombuffer(memory, np.uint8, size_bytes)  # holds on to ``memory``


def _slot(staging: Any) -> _Slot:
    copied = cp.cuda.Event(block=True, disable_timing=True)  # threads sleep until it is over
    return _Slot(staging, copied, cp.cuda.Event(disable_timing=True))
