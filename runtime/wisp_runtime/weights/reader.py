"""Read a checkpoint's tensors, chunk by chunk in the order of the files, into a device's weights.

Not a memory map: a file cut short beneath one kills the process. Threads read; the device's
:class:`~wisp_runtime.ops.protocol.upload.WeightUploader` stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from wisp_runtime.batch import Array
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.ops.protocol.upload import PAGE_BYTES, WeightDestination, WeightUploader
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.chunks import ReadChunk

OnProgress = Callable[[int, int], None]
"""``on_progress(bytes_done, total_bytes)``: called from the thread that called, in order."""


class Files:
    """Open files of a checkpoint, a context manager that closes them.

    Args:
        folder: folder of the checkpoint.
        names: names of the files.
        is_direct: whether to read past the page cache (``O_DIRECT``), in whole pages; for files not in it.
    """

    def __init__(self, folder: Path, names: Iterable[str], *, is_direct: bool = False) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if is_direct else 0)
        self._folder = folder
        self._alignment = PAGE_BYTES if is_direct else 1
        self._descriptors: dict[str, int] = {}
        try:
            for name in names:
                self._descriptors[name] = os.open(folder / name, flags)
        except OSError as error:
            self.close()
            raise WeightsUnreadable(f"{folder / name}: cannot be opened: {error.strerror}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def read(self, chunk: ReadChunk, buffer: Array) -> Array:
        """Read ``chunk`` into ``buffer`` ``[bytes]`` uint8; return the part that holds the kept bytes.

        Args:
            buffer: page-aligned, two pages longer than the chunk.

        Raises:
            WeightsUnreadable: the file ended, or cannot be read.
        """
        tensor = chunk.tensor
        skip = chunk.start % self._alignment
        needed, got = skip + chunk.size_bytes, 0
        length = -(-needed // self._alignment) * self._alignment
        while got < needed:
            try:
                target = [memoryview(buffer[got:length])]
                count = os.preadv(self._descriptors[tensor.file], target, chunk.start - skip + got)
            except OSError as error:
                raise WeightsUnreadable(
                    f"{self._folder / tensor.file}: reading {tensor.name} failed: {error.strerror}."
                ) from error
            if count == 0:
                raise WeightsUnreadable(
                    f"{self._folder / tensor.file}: ended while {tensor.name} was read; something else is "
                    "writing to it. Wait for that to finish, or download the model again."
                )
            got += count
        return chunk.select(buffer[skip:needed])


class WeightReader:
    """Threads that read chunks into weights, from entering until :meth:`wait` returns.

    Args:
        files: the open files.
        chunks: reads, in this order; :func:`.chunks.plan` puts scales first.
        weights: weights of the model.
        uploader: uploader of their device.
    """

    def __init__(
        self, files: Files, chunks: list[ReadChunk], weights: Weights, uploader: WeightUploader
    ) -> None:
        self._files, self._chunks, self._weights, self._uploader = files, chunks, weights, uploader
        self._pool = ThreadPoolExecutor(uploader.threads, "wisp-load")
        self._jobs: list[Future[None]] = []
        self._scales: list[Future[None]] = []

    def __enter__(self) -> Self:
        for chunk in self._chunks:
            job = self._pool.submit(self._load, chunk)
            self._jobs.append(job)
            if chunk.is_scale:
                self._scales.append(job)
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

    def _load(self, chunk: ReadChunk) -> None:
        tensor, destination = chunk.tensor, self._destination(chunk)
        if destination.decode is not None:
            for job in self._scales:  # planned before all values, so each is done or running
                job.result()
        try:
            self._uploader.upload(destination, chunk.size_bytes, partial(self._files.read, chunk))
        except Exception as error:
            error.add_note(f"while {tensor.name} of {tensor.file} was loaded")
            raise

    def _destination(self, chunk: ReadChunk) -> WeightDestination:
        return self._weights.destination(chunk.weight, chunk.at, chunk.shape, chunk.tensor.dtype)
