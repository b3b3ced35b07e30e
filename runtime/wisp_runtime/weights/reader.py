"""Read a checkpoint's tensors, piece by piece in the order of the files, into a device's weights.

Not a memory map: a file cut short beneath one kills the process. Threads read; what a piece becomes is the
business of the device's :class:`~wisp_runtime.ops.protocol.upload.Intake`.
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
from wisp_runtime.ops.protocol.upload import PAGE_BYTES, Intake
from wisp_runtime.weights.arena import Weights

OnProgress = Callable[[int, int], None]
"""``on_progress(bytes_done, total_bytes)``: called from the thread that called, in order."""

_ROW_STEP = 64  # packed matrices have blocks of 64 rows, the CPU's have tiles of 32


@dataclass(frozen=True, slots=True)
class Piece:
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


def plan(tensors: Iterable[TensorInfo], piece_bytes: int) -> list[Piece]:
    """Cut tensors into pieces, in the order of the bytes in the files.

    A piece has at most ``piece_bytes`` (or one row), and starts at a multiple of 64 rows where 64 rows are
    not too much for a piece.
    """
    ordered = sorted(tensors, key=lambda tensor: (tensor.file, tensor.start))
    return [piece for tensor in ordered for piece in _pieces(tensor, piece_bytes)]


def _pieces(tensor: TensorInfo, piece_bytes: int) -> Iterator[Piece]:
    most = max(1, piece_bytes // max(1, _row_bytes(tensor)))
    step = most // _ROW_STEP * _ROW_STEP or most
    for first in range(0, tensor.shape[0], step):
        yield Piece(tensor, first, min(step, tensor.shape[0] - first))


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

    def read(self, piece: Piece, buffer: Array) -> Array:
        """Read ``piece`` into ``buffer`` ``[bytes]`` uint8; return the part of it that the piece's bytes are.

        Args:
            buffer: begins at a page, and has two pages more than the piece.

        Raises:
            WeightsUnreadable: the file ended, or cannot be read.
        """
        tensor = piece.tensor
        skip = piece.start % self._alignment
        needed, got = skip + piece.size_bytes, 0
        length = -(-needed // self._alignment) * self._alignment
        while got < needed:
            try:
                place = [memoryview(buffer[got:length])]
                count = os.preadv(self._descriptors[tensor.file], place, piece.start - skip + got)
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


class Feed:
    """Threads that read pieces into weights, from entering until :meth:`wait` returns.

    Args:
        files: opened.
        pieces: what to read, in this order.
        weights: where it goes.
        intake: how it gets there.
    """

    def __init__(self, files: Files, pieces: list[Piece], weights: Weights, intake: Intake) -> None:
        self._files, self._pieces, self._weights, self._intake = files, pieces, weights, intake
        self._pool = ThreadPoolExecutor(intake.threads, "wisp-load")
        self._jobs: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._jobs = [self._pool.submit(self._bring, piece) for piece in self._pieces]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def wait(self, on_progress: OnProgress) -> None:
        """Wait until all pieces are in place, telling how many bytes are on their way or there.

        Raises:
            RuntimeFailure: what stopped the first piece that was stopped.
        """
        total, done = sum(piece.size_bytes for piece in self._pieces), 0
        on_progress(0, total)
        for piece, job in zip(self._pieces, self._jobs, strict=True):
            job.result()
            done += piece.size_bytes
            if done < total:
                on_progress(done, total)
        self._intake.finish()
        on_progress(done, total)

    def _bring(self, piece: Piece) -> None:
        tensor = piece.tensor
        place = self._weights.place(tensor.name, piece.first, piece.rows, tensor.dtype)
        try:
            self._intake.put(place, lambda buffer: self._files.read(piece, buffer))
        except Exception as error:
            error.add_note(f"while {tensor.name} of {tensor.file} was brought to its place")
            raise
