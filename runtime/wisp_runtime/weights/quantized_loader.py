"""Load a chunk of a quantized or transposed weight: its rows as the device holds them, or dequantized."""

from __future__ import annotations

from functools import partial

import numpy as np

from wisp_plan.quantization.compact_format import CompactFormat
from wisp_plan.quantization.packed_format import PackedFormat
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.weights.upload import PAGE_BYTES, QUANTIZED, STORED, WeightUploader
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.quantized_chunks import ROW_STEP, QuantizedChunk
from wisp_runtime.weights.quantized_rows import (
    copied,
    parts_bytes,
    read_compact,
    read_dequantized,
    read_held,
)


def load_chunk(chunk: QuantizedChunk, files: Files, weights: Weights, uploader: WeightUploader) -> None:
    """Read a chunk from ``files`` and store it in ``weights``.

    Raises:
        WeightsUnreadable: a file ended, or a part of a layer cannot be used.
    """
    spec = weights.specs[chunk.weight]
    if not chunk.stored.is_quantized:
        _load_dequantized(chunk, files, weights, uploader)
    elif spec.compact is not None:
        _load_compact(chunk, files, weights, uploader, spec.compact)
    elif spec.held is not None:
        _load_held(chunk, files, weights, uploader, spec.held)
    else:
        _load_dequantized(chunk, files, weights, uploader)


def _load_dequantized(
    chunk: QuantizedChunk, files: Files, weights: Weights, uploader: WeightUploader
) -> None:
    """Dequantize a chunk, and store its rows, as many at a time as a buffer holds."""
    dtype = uploader.dequantized
    rows = read_dequantized(files, chunk).astype(STORED[dtype], copy=False)
    *leading, first, column = chunk.at
    step = max(1, uploader.chunk_bytes // rows[0].nbytes)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        at = (*leading, first + start, column)
        destination = weights.destination(chunk.weight, at, part.shape, dtype)
        uploader.upload(destination, part.nbytes, partial(_fill, part))


def _load_compact(
    chunk: QuantizedChunk, files: Files, weights: Weights, uploader: WeightUploader, layout: CompactFormat
) -> None:
    """Store a chunk's rows as codes and scales; they need no buffer of the uploader's."""
    rows = read_compact(files, chunk, layout)
    destination = weights.destination(chunk.weight, chunk.at, chunk.shape, QUANTIZED)
    uploader.upload(destination, 0, lambda _buffer: rows)


def _load_held(
    chunk: QuantizedChunk, files: Files, weights: Weights, uploader: WeightUploader, packed: PackedFormat
) -> None:
    """Store a chunk's rows in their packed format; those of a large chunk as many as a buffer holds."""
    needed = parts_bytes(chunk)
    if needed <= uploader.chunk_bytes:
        destination = weights.destination(chunk.weight, chunk.at, chunk.shape, QUANTIZED)
        uploader.upload(destination, needed, partial(read_held, files, chunk, packed))
        return
    rows = read_held(files, chunk, packed, np.empty(needed, np.uint8))
    *leading, first, column = chunk.at
    row_bytes = -(-rows.nbytes // len(rows))
    step = max(1, (uploader.chunk_bytes - PAGE_BYTES) // row_bytes // ROW_STEP) * ROW_STEP
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        at, shape = (*leading, first + start, column), (len(part), chunk.shape[1])
        destination = weights.destination(chunk.weight, at, shape, QUANTIZED)
        uploader.upload(destination, part.nbytes, partial(copied, part))


def _fill(rows: Array, buffer: Array) -> Array:
    flat = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    buffer[: flat.nbytes] = flat
    return buffer[: flat.nbytes]
