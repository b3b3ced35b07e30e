"""Read a checkpoint's tensors, chunk by chunk in the order of the files, into a device's weights.

Not a memory map: a file cut short beneath one kills the process. Threads read; what a chunk becomes is the
business of the device's :class:`~wisp_runtime.ops.protocol.upload.WeightUploader`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from wisp_plan.checkpoint.header import TensorInfo
from wisp_runtime.batch import Array
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.ops.protocol.upload import PAGE_BYTES, WeightUploader
from wisp_runtime.weights.arena import Weights

OnProgress = Callable[[int, int], None]
"""``on_progress(bytes_done, total_bytes)``: called from the thread that called, in order."""

_ROW_STEP = 64  # packed matrices have blocks of 64 rows, the CPU's have tiles of 32


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """Rows of a tensor that are read at once."""

    tensor: TensorInfo
    first: int
    rows: int

    @property
    def start(self) -> int:
        """Where its bytes begin in the file."""
        return self.tensor.start + self.first * _row_bytes(self.tensor)

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""
        return self.rows * _row_bytes(self.tensor)


def plan(tensors: Iterable[TensorInfo], chunk_bytes: int) -> list[ReadChunk]:
    """Cut tensors into chunks, in the order of the bytes in the files.

    A chunk has at most ``chunk_bytes`` (or one row), and starts at a multiple of 64 rows where 64 rows are
    not too much for a chunk.
    """
    ordered = sorted(tensors, key=lambda tensor: (tensor.file, tensor.start))
    return [chunk for tensor in ordered for chunk in _chunks(tensor, chunk_bytes)]


def _chunks(tensor: TensorInfo, chunk_bytes: int) -> Iterator[ReadChunk]:
    most = max(1, chunk_bytes // max(1, _row_bytes(tensor)))
    step = most // _ROW_STEP * _ROW_STEP or most
    for first in range(0, tensor.shape[0], step):
        yield ReadChunk(tensor, first, min(step, tensor.shape[0] - first))


def _row_bytes(tensor: TensorInfo) -> int:
    return tensor.size_bytes // max(1, tensor.shape[0])


class Files:
    """The open files of a checkpoint. Close them by ``with``.

    Args:
        folder: where they are.
        names: which.
        is_direct: read past the page cache (``O_DIRECT``), in whole pages; for files that are not in it.
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
        """Read ``chunk`` into ``buffer`` ``[bytes]`` uint8; return the part that holds the chunk's bytes.

        Args:
            buffer: begins at a page, and has two pages more than the chunk.

        Raises:
            WeightsUnreadable: the file ended, or cannot be read.
        """
        tensor = chunk.tensor
        skip = chunk.start % self._alignment
        needed, got = skip + chunk.size_bytes, 0
        length = -(-needed // self._alignment) * self._alignment
        while got < needed:
            try:
                place = [memoryview(buffer[got:length])]
                count = os.preadv(self._descriptors[tensor.file], place, chunk.start - skip + got)
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
        return buffer[skip:needed]


class WeightReader:
    """Threads that read chunks into weights, from entering until :meth:`wait` returns.

    Args:
        files: opened.
        chunks: what to read, in this order.
        weights: where it goes.
        uploader: how it gets there.
    """

    def __init__(
        self, files: Files, chunks: list[ReadChunk], weights: Weights, uploader: WeightUploader
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
        """Wait until all chunks are in place, telling how many bytes are on their way or there.

        Raises:
            RuntimeFailure: what stopped the first chunk that was stopped.
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
        tensor = chunk.tensor
        destination = self._weights.place(tensor.name, chunk.first, chunk.rows, tensor.dtype)
        try:
            self._uploader.upload(destination, lambda buffer: self._files.read(chunk, buffer))
        except Exception as error:
            error.add_note(f"while {tensor.name} of {tensor.file} was brought to its place")
            raise
