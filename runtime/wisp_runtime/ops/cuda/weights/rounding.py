"""Rows rounded to a quantized matrix on the GPU: those of a checkpoint, and random ones."""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.driver import translate
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.weights.quantized import (
    QuantizedStorage,
    pack_quantized,
    quantize_rows,
    scratch_bytes,
)
from wisp_runtime.ops.reference.random import random_scale

_FILL_THREADS, _VECTOR = 256, 8
_ROWS_BYTES = 64 << 20  # of random rows at a time


class Rounding:
    """Quantization of rows on the device's stream, with memory for the result of one call.

    Args:
        device: the GPU.
        not_finite: ``[1]`` int32 there, which becomes 1 if a number is NaN or infinite; None: no report.
    """

    def __init__(self, device: Gpu, not_finite: Array | None = None) -> None:
        self._device, self._not_finite = device, not_finite
        self._memory: Any = None

    def store(self, rows: Array, weight: QuantizedStorage, first: int) -> None:
        """Round rows ``[R, in]`` of the GPU and store them in ``weight`` from row ``first`` on."""
        needed = scratch_bytes(weight.packed, len(rows), weight.inputs)
        if self._memory is None or self._memory.mem.size < needed:
            with translate(f"allocating {needed} bytes for quantizing weights"):
                self._device.stream.synchronize()  # the smaller memory may be in use
                self._memory = cp.cuda.MemoryPointer(cp.cuda.Memory(needed), 0)
        quantized = quantize_rows(self._device, rows, weight.packed, self._memory, self._not_finite)
        pack_quantized(self._device, quantized, weight, first)


def fill_quantized(device: Gpu, weight: QuantizedStorage, key: int, mean: float, deviation: float) -> None:
    """Fill a quantized matrix with :func:`.reference.random_values`, rounded to nearest, and wait for it."""
    rounding, columns = Rounding(device), weight.inputs
    count = max(1, min(weight.outputs, _ROWS_BYTES // (columns * BF16.itemsize)))
    with translate("allocating memory for random weights"):
        memory = cp.cuda.MemoryPointer(cp.cuda.Memory(count * columns * BF16.itemsize), 0)
    kernel = device.kernels.get("fill_random", "fill_random_rows")
    for first in range(0, weight.outputs, count):
        rows = cp.ndarray((min(count, weight.outputs - first), columns), BF16, memory)
        kernel.launch(
            (-(-rows.size // (_FILL_THREADS * _VECTOR)),),
            _FILL_THREADS,
            rows,
            np.int64(rows.size),
            np.int32(columns),
            np.int32(first),
            np.uint64(key),
            random_scale(deviation),
            np.float32(mean),
        )
        rounding.store(rows, weight, first)
    device.synchronize()  # GEMMs load weights before the kernel ahead of them has ended
