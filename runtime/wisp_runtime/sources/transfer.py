"""Bring files from a source into a folder: in parallel ranges, and on from where the last attempt stopped.

A file arrives as ``NAME.part`` beside ``NAME.done-SIZE``, which has one byte for each piece of that size
that is safely on the disk; both outlive the process, and the machine. A whole file has its own name.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock

from wisp_runtime.errors import SourceUnreachable
from wisp_runtime.sources.listing import RemoteFile, Source
from wisp_runtime.sources.manifest import has_size

PIECE_BYTES = 32 << 20
_THREADS = 8
_ATTEMPTS = 5  # in a row without a byte
_PAUSE_S = 0.5

OnBytes = Callable[[int], None]


@dataclass(slots=True)
class _Piece:
    """A range of a file on its way; ``at`` is how far it has come."""

    file: RemoteFile
    index: int
    at: int
    stop: int


class Transfer:
    """The files of one model on their way into ``folder``."""

    def __init__(self, source: Source, files: Iterable[RemoteFile], folder: Path) -> None:
        """Look at what is there already; nothing is fetched yet."""
        self._source, self._folder = source, folder
        self._files = [file for file in files if not has_size(folder / file.name, file)]
        self._pieces = [piece for file in self._files for piece in _missing(folder / file.name, file)]
        self._stopping, self._counting = Event(), Lock()

    @property
    def missing_bytes(self) -> int:
        """What has yet to come."""
        return sum(piece.stop - piece.at for piece in self._pieces)

    def run(self, on_bytes: OnBytes) -> None:
        """Fetch what is missing; ``on_bytes`` is called from several threads, one at a time.

        Raises:
            RuntimeFailure: of the source; what has arrived is kept.
            OSError: the disk is full, or cannot be written.
        """
        with ThreadPoolExecutor(_THREADS, "wisp-fetch") as pool:
            jobs = [pool.submit(self._bring, piece, on_bytes) for piece in self._pieces]
            try:
                for job in jobs:
                    job.result()
            finally:
                self._stopping.set()
                pool.shutdown(cancel_futures=True)
        for file in self._files:
            _finish(self._folder / file.name)

    def _bring(self, piece: _Piece, on_bytes: OnBytes) -> None:
        """Fetch one piece, however often it breaks off, and note that it is on the disk."""
        path, failures = self._folder / piece.file.name, 0
        descriptor = os.open(_part(path), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            while piece.at < piece.stop and not self._stopping.is_set():
                before = piece.at
                broken = self._advance(piece, descriptor, on_bytes)
                failures = 0 if piece.at > before else failures + 1
                if broken and failures >= _ATTEMPTS:
                    raise broken
                if broken:
                    self._stopping.wait(_PAUSE_S * 2**failures)
            if piece.at == piece.stop:
                os.fdatasync(descriptor)
                _note(path, piece.index)
        finally:
            os.close(descriptor)

    def _advance(self, piece: _Piece, descriptor: int, on_bytes: OnBytes) -> SourceUnreachable | None:
        """Write what one request gives; return why it gave less than all."""
        try:
            for data in self._source.read(piece.file, piece.at, piece.stop):
                written = os.pwrite(descriptor, data, piece.at)
                piece.at += written
                with self._counting:
                    on_bytes(written)
                if written < len(data) or self._stopping.is_set():
                    break
        except SourceUnreachable as error:
            return error
        if piece.at < piece.stop:
            return SourceUnreachable(f"{piece.file.name} of {self._source.uri} ended before its end.")
        return None


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _done(path: Path) -> Path:
    return path.with_name(f"{path.name}.done-{PIECE_BYTES}")


def _missing(path: Path, file: RemoteFile) -> list[_Piece]:
    """The pieces of a file that are not on the disk; an empty file is made at once."""
    if not file.size_bytes:
        path.touch()
    done = _done(path).read_bytes() if _done(path).exists() and _part(path).exists() else b""
    starts = range(0, file.size_bytes, PIECE_BYTES)
    return [
        _Piece(file, index, start, min(file.size_bytes, start + PIECE_BYTES))
        for index, start in enumerate(starts)
        if done[index : index + 1] != b"\1"
    ]


def _note(path: Path, index: int) -> None:
    descriptor = os.open(_done(path), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, b"\1", index)
    finally:
        os.close(descriptor)


def _finish(path: Path) -> None:
    if _part(path).exists():
        _part(path).rename(path)
    for note in path.parent.glob(f"{glob.escape(path.name)}.done-*"):
        note.unlink()
