"""Read rows of a quantized weight, check their scales, and dequantize or rearrange them for a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from wisp_plan.quantization.compact_format import CompactFormat
from wisp_plan.quantization.packed_format import PackedFormat
from wisp_plan.quantization.stored_format import VALUES
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.weights.upload import (
    PAGE_BYTES,
    SLACK_BYTES,
    STORED,
    CompactRows,
    QuantizedRows,
)
from wisp_runtime.weights.compact_rows import compact_rows
from wisp_runtime.weights.dequantize import dequantize
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.gguf_blocks.bits import ScaleInvalid
from wisp_runtime.weights.held_rows import held_rows
from wisp_runtime.weights.part_checks import check_numbers, check_part, damaged
from wisp_runtime.weights.quantized_chunks import PartRead, QuantizedChunk

_ALIGNMENT = 64  # of arrays in a buffer


def read_dequantized(files: Files, chunk: QuantizedChunk) -> Array:
    """Return the weights ``[R, in]`` of a chunk, float32.

    Raises:
        WeightsUnreadable: a file ended, or a part of a layer cannot be used.
    """
    parts, _ = _parts(files, chunk, np.empty(parts_bytes(chunk), np.uint8))
    check_numbers(chunk.tensor, parts[VALUES])
    with _named(chunk):
        return dequantize(chunk.stored.scheme, parts, chunk.shape)


def read_compact(files: Files, chunk: QuantizedChunk, layout: CompactFormat) -> CompactRows:
    """Return the rows of a chunk in a compact format.

    Raises:
        WeightsUnreadable: a file ended, or a part of a layer cannot be used.
    """
    parts, _ = _parts(files, chunk, np.empty(parts_bytes(chunk), np.uint8))
    check_numbers(chunk.tensor, parts[VALUES])
    with _named(chunk):
        return compact_rows(layout, chunk.stored.scheme, parts, chunk.shape)


def read_held(files: Files, chunk: QuantizedChunk, packed: PackedFormat, buffer: Array) -> QuantizedRows:
    """Return the rows of a chunk in a packed format; they lie in ``buffer`` where they fit.

    The device reports numbers that are not finite.

    Args:
        files: the open files.
        chunk: rows to read.
        packed: format that holds their scheme.
        buffer: ``[parts_bytes(chunk)]`` uint8 or more.

    Raises:
        WeightsUnreadable: a file ended, or a part of a layer cannot be used.
    """
    parts, used = _parts(files, chunk, buffer)
    with _named(chunk):
        rows = held_rows(packed, chunk.stored.scheme, parts, chunk.shape)
    return QuantizedRows(*_placed(rows.arrays, buffer, used))


def parts_bytes(chunk: QuantizedChunk) -> int:
    """Return the bytes of a buffer that all parts of a chunk are read into."""
    return sum(_part_bytes(read) for read in chunk.reads) + PAGE_BYTES


def copied(rows: QuantizedRows, buffer: Array) -> QuantizedRows:
    """Return ``rows`` copied into ``buffer``, one array after the other."""
    return QuantizedRows(*_placed(rows.arrays, buffer, 0))


@contextmanager
def _named(chunk: QuantizedChunk) -> Iterator[None]:
    """Name the tensor whose blocks have a scale that is no number."""
    try:
        yield
    except ScaleInvalid as error:
        raise damaged(chunk.tensor, "a scale that is not finite") from error


def _parts(files: Files, chunk: QuantizedChunk, buffer: Array) -> tuple[dict[str, Array], int]:
    """Read all parts into a buffer; return them by name, and the bytes of the buffer that are used."""
    parts, used = {}, -buffer.ctypes.data % PAGE_BYTES
    for read in chunk.reads:
        raw = files.read_bytes(read.tensor, read.start, read.size_bytes, buffer[used:])
        part = read.select(raw.view(STORED[read.tensor.dtype]))
        check_part(read, part, chunk.stored.scheme)
        parts[read.source.part.name] = part
        used += _part_bytes(read)
    return parts, used


def _part_bytes(read: PartRead) -> int:
    return -(-(read.size_bytes + SLACK_BYTES) // PAGE_BYTES) * PAGE_BYTES


def _placed(arrays: Iterable[Array | None], buffer: Array, used: int) -> Iterator[Any]:
    """Yield arrays; those outside of ``buffer`` are copied to its rest from ``used`` on if they fit."""
    for array in arrays:
        if array is None or (np.may_share_memory(array, buffer) and array.flags.c_contiguous):
            yield array
            continue
        end = used + array.nbytes
        if end > buffer.nbytes:
            yield np.ascontiguousarray(array)
            continue
        target = buffer[used:end].view(array.dtype).reshape(array.shape)
        target[...] = array
        used = -(-end // _ALIGNMENT) * _ALIGNMENT
        yield target
