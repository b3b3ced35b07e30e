"""Bring a checkpoint's rows to the GPU: read into pinned memory, copied on a stream of its own, packed there.

Who waits for what, for each of a few buffers: the reading thread waits for the buffer's last copy; a copy
waits for the last packing out of its staging memory on the GPU; a packing waits for its copy. So reading,
copying and packing of different buffers overlap. Buffers and staging go when all is in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cpu.threads import available_threads
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.device import Device
from wisp_runtime.ops.cuda.device.driver import translate
from wisp_runtime.ops.cuda.weights.packing import pack_rows
from wisp_runtime.ops.cuda.weights.ring import RingIntake
from wisp_runtime.ops.protocol.upload import SLACK_BYTES, STORED, Place, head_rows, packed_row

PIECE_BYTES = 8 << 20
_SLOT_BYTES = PIECE_BYTES + SLACK_BYTES
_LEAST_THREADS, _MOST_THREADS = 4, 12  # 12 read the page cache of an H200's host at 37 GB/s
_SPARE_SLOTS = 4  # being copied while all threads read
_DOING = "copying weights to the GPU"


def upload_intake(device: Device, total_bytes: int) -> RingIntake:
    """Return an intake of ``device`` with no more buffers than ``total_bytes`` are worth."""
    threads = min(_MOST_THREADS, max(_LEAST_THREADS, available_threads()))
    slots = min(threads + _SPARE_SLOTS, max(2, -(-total_bytes // PIECE_BYTES)))
    return RingIntake(UploadCarrier(device, slots), threads=threads, piece_bytes=PIECE_BYTES)


@dataclass(frozen=True, slots=True)
class _Slot:
    """What belongs to a buffer.

    Attributes:
        staging: ``PIECE_BYTES`` of the GPU's memory.
        copied: the last copy out of the buffer is over.
        packed: the last packing out of ``staging`` is over.
    """

    staging: Any
    copied: Any
    packed: Any


class UploadCarrier:
    """See :class:`wisp_runtime.ops.cuda.weights.ring.Carrier`.

    Args:
        device: whose stream packs.
        slots: buffers, each with staging memory on the GPU.
    """

    def __init__(self, device: Device, slots: int) -> None:
        self._device = device
        self.buffers = [np.empty(0, np.uint8)] * slots
        with translate(f"allocating {slots} buffers of {PIECE_BYTES} bytes for reading weights"):
            staging = cp.cuda.MemoryPointer(cp.cuda.Memory(slots * PIECE_BYTES), 0)
            self._slots = [_slot(staging + slot * PIECE_BYTES) for slot in range(slots)]
            self._stream = cp.cuda.Stream(non_blocking=True)
            self._stream.wait_event(device.stream.record())  # the arena is cleared there

    def wait(self, slot: int) -> None:
        """See :meth:`.ring.Carrier.wait`. A buffer is pinned when it is first wanted, while others fill."""
        with translate(_DOING):
            cp.cuda.Device(self._device.index).use()  # each thread has a current device of its own
            self._slots[slot].copied.synchronize()
            if not self.buffers[slot].size:
                self.buffers[slot] = _pinned(_SLOT_BYTES)

    def send(self, slot: int, rows: Array, place: Place) -> None:
        """See :meth:`.ring.Carrier.send`."""
        with translate(_DOING):
            if len(place.shape) == 2:
                self._send_rows(self._slots[slot], rows, place)
            else:
                self._send_vector(self._slots[slot], self.buffers[slot], rows, place)

    def close(self) -> None:
        """See :meth:`.ring.Carrier.close`."""
        with translate(_DOING):
            self._stream.synchronize()
            self._device.stream.synchronize()
            self._slots, self.buffers = [], []

    def _send_rows(self, slot: _Slot, rows: Array, place: Place) -> None:
        self._stream.wait_event(slot.packed)
        self._copy(slot.staging.ptr, rows)
        slot.copied.record(self._stream)
        self._device.stream.wait_event(slot.copied)
        staged = cp.ndarray(place.shape, STORED[place.dtype], slot.staging)
        pack_rows(self._device, staged, place.weight, place.first)
        slot.packed.record(self._device.stream)

    def _send_vector(self, slot: _Slot, buffer: Array, rows: Array, place: Place) -> None:
        """Round here, in the buffer, and copy straight to the arena: vectors are few and small."""
        values = rows.view(STORED[place.dtype]).astype(BF16)
        if size := head_rows(place.order):  # whole heads: a vector is never cut in pieces
            places = packed_row(np.arange(size), size, place.order)
            values = values.reshape(-1, size)[:, np.argsort(places)].reshape(-1)
        rounded = buffer[: values.nbytes]
        rounded[:] = values.view(np.uint8)
        target = place.weight.data.ptr
        if place.order == "gate_up":
            first = packed_row(place.first, len(place.weight), "gate_up")
            self._copy_eights(target + first * BF16.itemsize, rounded)
        else:
            self._copy(target + place.first * BF16.itemsize, rounded)
        slot.copied.record(self._stream)

    def _copy(self, target: int, source: Array) -> None:
        runtime = cp.cuda.runtime
        kind, stream = runtime.memcpyHostToDevice, self._stream.ptr
        runtime.memcpyAsync(target, source.ctypes.data, source.nbytes, kind, stream)

    def _copy_eights(self, target: int, source: Array) -> None:
        """Copy eight numbers to every other place for eight."""
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
