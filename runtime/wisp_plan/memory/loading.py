"""Memory that a device needs while weights are read, and has back before caches and buffers are allocated.

On a GPU: staging memory that rows are copied to and packed from, and the result of one rounding or packing;
rounding at load needs no second copy of a weight. On the CPU: what its threads dequantize at a time.
"""

from __future__ import annotations

from functools import lru_cache

from wisp_plan.quantization.stored_format import VALUES
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import WeightSource
from wisp_plan.units import MIB
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.sizes import Device
from wisp_plan.weights.stored import as_stored

GPU_CHUNK_BYTES = 8 * MIB
"""Rows in a buffer of a GPU's uploader (``ops/cuda/weights/copy_engine.py``)."""

MAX_GPU_BUFFERS = 16

HOST_THREADS, HOST_CHUNK_BYTES = 4, MIB
"""Threads of the CPU's uploader, and bytes of their reads (``ops/protocol/weights/upload.py``)."""

DEQUANTIZED_BYTES = 10
"""Bytes a weight while it is dequantized on the host: codes, float32, scales spread over their blocks."""

_CHUNK_ROWS = 128  # at least so many rows are dequantized at a time


@lru_cache(maxsize=256)
def loading_bytes(spec: ModelSpec, device: Device) -> int:
    """Count the bytes beside weights, in the device's memory, while a checkpoint of ``spec`` is read."""
    if device == "cuda":
        return (MAX_GPU_BUFFERS + 1) * GPU_CHUNK_BYTES
    stored = (
        source
        for weight in as_stored(declare(spec), {}, spec.quantization)
        for source in weight.sources
        if source.stored is not None
    )
    dequantized = max(map(elements_at_once, stored), default=0) * DEQUANTIZED_BYTES
    return HOST_THREADS * (dequantized + 3 * HOST_CHUNK_BYTES)  # bf16 as it is read, and in float32


def elements_at_once(source: WeightSource) -> int:
    """Count the weights of a source that are dequantized at a time: all of one that is stored transposed."""
    assert source.stored is not None
    *_, rows, columns = map(len, source.slices)
    if any(part.is_transposed for part in source.stored.parts if part.name == VALUES):
        return rows * columns
    fitting = HOST_CHUNK_BYTES // (2 * columns) // _CHUNK_ROWS * _CHUNK_ROWS
    return min(rows, max(_CHUNK_ROWS, fitting)) * columns
