"""Read rows of a quantized weight, check their scales, and dequantize them."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.upload import PAGE_BYTES, SLACK_BYTES, STORED, page_aligned
from wisp_runtime.weights.dequantize import dequantize
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.part_checks import check_part
from wisp_runtime.weights.quantized_chunks import PartRead, QuantizedChunk


def read_dequantized(files: Files, chunk: QuantizedChunk) -> Array:
    """Return the weights ``[R, in]`` of a chunk, float32.

    Raises:
        WeightsUnreadable: a file ended, or a part of a layer cannot be used.
    """
    parts = {read.source.part.name: _read(files, read) for read in chunk.reads}
    for read in chunk.reads:
        check_part(read, parts[read.source.part.name], chunk.stored.scheme)
    return dequantize(chunk.stored.scheme, parts, chunk.shape)


def _read(files: Files, read: PartRead) -> Array:
    buffer = page_aligned(np.empty(read.size_bytes + SLACK_BYTES + PAGE_BYTES, np.uint8))
    raw = files.read_bytes(read.tensor, read.start, read.size_bytes, buffer)
    return read.select(raw.view(STORED[read.tensor.dtype]))
