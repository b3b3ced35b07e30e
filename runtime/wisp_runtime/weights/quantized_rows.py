"""Read rows of a quantized weight, check their scales, and dequantize them."""

from __future__ import annotations

import numpy as np

from wisp_plan.quantization.stored_format import VALUES
from wisp_runtime.batch import Array
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.ops.protocol.upload import PAGE_BYTES, SLACK_BYTES, STORED, page_aligned
from wisp_runtime.weights.dequantize import dequantize
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.quantized_chunks import PartRead, QuantizedChunk


def read_dequantized(files: Files, chunk: QuantizedChunk) -> Array:
    """Return the weights ``[R, in]`` of a chunk, float32.

    Raises:
        WeightsUnreadable: a file ended, or a scale is not finite or below zero.
    """
    parts = {read.source.part.name: _read(files, read) for read in chunk.reads}
    for read in chunk.reads:
        if read.source.part.name != VALUES and parts[read.source.part.name].dtype.kind not in "iu":
            _check(parts[read.source.part.name], read)
    return dequantize(chunk.stored.scheme, parts, chunk.shape)


def _read(files: Files, read: PartRead) -> Array:
    buffer = page_aligned(np.empty(read.size_bytes + SLACK_BYTES + PAGE_BYTES, np.uint8))
    raw = files.read_bytes(read.tensor, read.start, read.size_bytes, buffer)
    return read.select(raw.view(STORED[read.tensor.dtype]))


def _check(scales: Array, read: PartRead) -> None:
    values = scales.astype(np.float32)
    if not np.isfinite(values).all() or (values < 0).any():
        raise WeightsUnreadable(
            f"{read.tensor.file}: {read.tensor.name} has a scale below zero or not finite. The file is "
            "damaged: download it again."
        )
