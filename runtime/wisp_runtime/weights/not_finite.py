"""Name the tensor whose numbers a device found not finite: files are read again, on the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import numpy as np

from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.ops.protocol.weights.upload import PAGE_BYTES, SLACK_BYTES, STORED, page_aligned
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.chunks import ReadChunk
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.part_checks import check_numbers
from wisp_runtime.weights.quantized_chunks import QuantizedChunk


def name_tensor(files: Files, chunks: Iterable[ReadChunk | QuantizedChunk], weights: Weights) -> NoReturn:
    """Read the weights that a device holds quantized once more, and refuse the first that is not finite.

    Raises:
        WeightsUnreadable: always; where the files have no such number, it says so.
    """
    for chunk in chunks:
        if weights.specs[chunk.weight].held is not None:
            _check_numbers(files, chunk)
    raise WeightsUnreadable(
        "weights that are not finite arrived on the GPU, though those in the files are finite: something "
        "else is writing to the files, or memory is faulty. Start again, or on another machine."
    )


def _check_numbers(files: Files, chunk: ReadChunk | QuantizedChunk) -> None:
    """Read the numbers of a chunk, and refuse those that are not finite."""
    read = chunk if isinstance(chunk, ReadChunk) else chunk.reads[0]
    buffer = page_aligned(np.empty(read.size_bytes + SLACK_BYTES + PAGE_BYTES, np.uint8))
    raw = files.read_bytes(read.tensor, read.start, read.size_bytes, buffer)
    check_numbers(read.tensor, raw.view(STORED[read.tensor.dtype]))
