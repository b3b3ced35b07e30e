"""Read a checkpoint's tensors, chunk by chunk in the order of the files, into a device's weights.

Threads read, :mod:`.quantized_loader` what is quantized; the device's
:class:`~wisp_runtime.ops.protocol.weights.upload.WeightUploader` stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self

from wisp_runtime.ops.protocol.weights.upload import WeightUploader
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.chunks import ReadChunk
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.quantized_chunks import QuantizedChunk

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
        if not self._uploader.finish():
            from wisp_runtime.weights.not_finite import name_tensor  # rarely needed

            name_tensor(self._files, self._chunks, self._weights)
        on_progress(done, total)

    def _load(self, chunk: ReadChunk | QuantizedChunk) -> None:
        try:
            if isinstance(chunk, ReadChunk):
                self._load_rows(chunk)
            else:
                from wisp_runtime.weights.quantized_loader import load_chunk  # quantized checkpoints alone

                load_chunk(chunk, self._files, self._weights, self._uploader)
        except Exception as error:
            error.add_note(f"while {chunk.tensor.name} of {chunk.tensor.file} was loaded")
            raise

    def _load_rows(self, chunk: ReadChunk) -> None:
        destination = self._weights.destination(chunk.weight, chunk.at, chunk.shape, chunk.tensor.dtype)
        self._uploader.upload(destination, chunk.size_bytes, partial(self._files.read, chunk))
