"""Open files of a checkpoint, read in ranges.

Not a memory map: a file cut short beneath one kills the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from wisp_plan.checkpoint.header import TensorInfo
from wisp_runtime.batch import Array
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.ops.protocol.weights.upload import PAGE_BYTES
from wisp_runtime.weights.chunks import ReadChunk


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
        """Read ``chunk`` as :meth:`read_bytes` does; return the part of ``buffer`` with the kept bytes."""
        return chunk.select(self.read_bytes(chunk.tensor, chunk.start, chunk.size_bytes, buffer))

    def read_bytes(self, tensor: TensorInfo, start: int, size_bytes: int, buffer: Array) -> Array:
        """Read bytes of ``tensor`` into ``buffer`` ``[bytes]`` uint8; return the part that holds them.

        Args:
            tensor: the tensor.
            start: offset in its file.
            size_bytes: number of bytes.
            buffer: page-aligned, two pages longer than the bytes.

        Raises:
            WeightsUnreadable: the file ended, or cannot be read.
        """
        skip = start % self._alignment
        needed, got = skip + size_bytes, 0
        length = -(-needed // self._alignment) * self._alignment
        while got < needed:
            try:
                target = [memoryview(buffer[got:length])]
                count = os.preadv(self._descriptors[tensor.file], target, start - skip + got)
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
