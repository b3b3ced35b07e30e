"""Read a checkpoint's tensors, chunk by chunk in the order of the files, into a device's weights.

Threads read, and arrange quantized rows as the device holds them, or dequantize those that it has no kernels
for; the device's
:class:`~wisp_runtime.ops.protocol.upload.WeightUploader` stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np

from wisp_plan.quantization.compact_format import CompactFormat
from wisp_plan.quantization.packed_format import PackedFormat
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.upload import PAGE_BYTES, QUANTIZED, STORED, WeightUploader
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.chunks import ReadChunk
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.quantized_chunks import ROW_STEP, QuantizedChunk
from wisp_runtime.weights.quantized_rows import copied, parts_bytes, read_compact, read_dequantized, read_held

OnProgress = Callable[[int, int], None]
"""``on_progress(bytes_done, total_bytes)``: called from the thread that called, in order."""


class WeightReader:
    """Threads that read chunks into weights, from entering until :meth:`wait` returns.

    Args:
        files: the open files.
        chunks: reads, in this order.
        weights: weights of the model.
        uploader: uploader of their device.
    """

    def __init__(
        self,
        files: Files,
        chunks: Sequence[ReadChunk | QuantizedChunk],
        weights: Weights,
        uploader: WeightUploader,
    ) -> None:
        self._files, self._chunks, self._weights, self._uploader = files, chunks, weights, uploader
        self._pool = ThreadPoolExecutor(uploader.threads, "wisp-load")
        self._jobs: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._jobs = [self._pool.submit(self._load, chunk) for chunk in self._chunks]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def wait(self, on_progress: OnProgress) -> None:
        """Wait until all chunks are stored, reporting how many bytes are read.

        Raises:
            RuntimeFailure: the first failure, in the chunks' order.
        """
        total, done = sum(chunk.size_bytes for chunk in self._chunks), 0
        on_progress(0, total)
        for chunk, job in zip(self._chunks, self._jobs, strict=True):
            job.result()
            done += chunk.size_bytes
            if done < total:
                on_progress(done, total)
        self._uploader.finish()
        on_progress(done, total)

    def _load(self, chunk: ReadChunk | QuantizedChunk) -> None:
        try:
            if isinstance(chunk, ReadChunk):
                self._load_rows(chunk)
            elif (layout := self._weights.specs[chunk.weight].compact) is not None:
                self._load_compact(chunk, layout)
            elif (packed := self._weights.specs[chunk.weight].held) is None:
                self._load_quantized(chunk)
            else:
                self._load_held(chunk, packed)
        except Exception as error:
            error.add_note(f"while {chunk.tensor.name} of {chunk.tensor.file} was loaded")
            raise

    def _load_rows(self, chunk: ReadChunk) -> None:
        destination = self._weights.destination(chunk.weight, chunk.at, chunk.shape, chunk.tensor.dtype)
        self._uploader.upload(destination, chunk.size_bytes, partial(self._files.read, chunk))

    def _load_quantized(self, chunk: QuantizedChunk) -> None:
        """Dequantize a chunk, and store its rows, as many at a time as a buffer holds."""
        dtype = self._uploader.dequantized
        rows = read_dequantized(self._files, chunk).astype(STORED[dtype], copy=False)
        *leading, first, column = chunk.at
        step = max(1, self._uploader.chunk_bytes // rows[0].nbytes)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            at = (*leading, first + start, column)
            destination = self._weights.destination(chunk.weight, at, part.shape, dtype)
            self._uploader.upload(destination, part.nbytes, partial(_fill, part))

    def _load_compact(self, chunk: QuantizedChunk, layout: CompactFormat) -> None:
        """Store a chunk's rows as codes and scales; they need no buffer of the uploader's."""
        rows = read_compact(self._files, chunk, layout)
        destination = self._weights.destination(chunk.weight, chunk.at, chunk.shape, QUANTIZED)
        self._uploader.upload(destination, 0, lambda _buffer: rows)

    def _load_held(self, chunk: QuantizedChunk, packed: PackedFormat) -> None:
        """Store a chunk's rows in their packed format; those of a large chunk as many as a buffer holds."""
        needed = parts_bytes(chunk)
        if needed <= self._uploader.chunk_bytes:
            destination = self._weights.destination(chunk.weight, chunk.at, chunk.shape, QUANTIZED)
            self._uploader.upload(destination, needed, partial(read_held, self._files, chunk, packed))
            return
        rows = read_held(self._files, chunk, packed, np.empty(needed, np.uint8))
        *leading, first, column = chunk.at
        row_bytes = -(-rows.nbytes // len(rows))
        step = max(1, (self._uploader.chunk_bytes - PAGE_BYTES) // row_bytes // ROW_STEP) * ROW_STEP
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            at, shape = (*leading, first + start, column), (len(part), chunk.shape[1])
            destination = self._weights.destination(chunk.weight, at, shape, QUANTIZED)
            self._uploader.upload(destination, part.nbytes, partial(copied, part))


def _fill(rows: Array, buffer: Array) -> Array:
    flat = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    buffer[: flat.nbytes] = flat
    return buffer[: flat.nbytes]
