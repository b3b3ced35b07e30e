"""Download files from a source into a folder: in parallel ranges, resuming after an interruption.

A file is downloaded as ``NAME.part`` with ``NAME.done-SIZE``, which has one byte for each range of that size
that is synced to the disk; both survive the process, and the machine. A complete file has its own name.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock

from wisp_runtime.errors import SourceUnreachable
from wisp_runtime.sources.listing import RemoteFile, Source
from wisp_runtime.sources.manifest import has_size

RANGE_BYTES = 32 << 20
_THREADS = 8
_ATTEMPTS = 5  # attempts in a row without a byte
_PAUSE_S = 0.5
_MIN_BYTES_PER_S = 1024  # rate of a request; a slower one is broken off, and counts as one without a byte
_RATE_WINDOW_S = 60.0

OnBytes = Callable[[int], None]


@dataclass(slots=True)
class _Range:
    """A range of a file; bytes before ``position`` are written."""

    file: RemoteFile
    index: int
    position: int
    stop: int


class _TooSlow(SourceUnreachable):
    """A request that trickles."""


class Transfer:
    """Download of one model's files into ``folder``."""

    def __init__(self, source: Source, files: Iterable[RemoteFile], folder: Path) -> None:
        """Determine the missing ranges; nothing is fetched yet."""
        self._source, self._folder = source, folder
        self._files = [file for file in files if not has_size(folder / file.name, file)]
        self._ranges = [span for file in self._files for span in _missing(folder / file.name, file)]
        self._stopping, self._counting = Event(), Lock()

    @property
    def missing_bytes(self) -> int:
        """Bytes still to fetch."""
        return sum(span.stop - span.position for span in self._ranges)

    def run(self, on_bytes: OnBytes) -> None:
        """Fetch the missing ranges; ``on_bytes`` is called from several threads, one at a time.

        Raises:
            RuntimeFailure: a failure of the source; fetched data is kept.
            OSError: the disk is full, or cannot be written.
        """
        with ThreadPoolExecutor(_THREADS, "wisp-fetch") as pool:
            jobs = [pool.submit(self._fetch, span, on_bytes) for span in self._ranges]
            try:
                for job in jobs:
                    job.result()
            finally:
                self._stopping.set()
                pool.shutdown(cancel_futures=True)
        for file in self._files:
            _finish(self._folder / file.name)

    def _fetch(self, span: _Range, on_bytes: OnBytes) -> None:
        """Fetch one range, retrying when it breaks off, and mark it as synced."""
        path, failures = self._folder / span.file.name, 0
        descriptor = os.open(_part(path), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            while span.position < span.stop and not self._stopping.is_set():
                before = span.position
                broken = self._advance(span, descriptor, on_bytes)
                is_moving = span.position > before and not isinstance(broken, _TooSlow)
                failures = 0 if is_moving else failures + 1
                if broken and failures >= _ATTEMPTS:
                    raise broken
                if broken:
                    self._stopping.wait(_PAUSE_S * 2**failures)
            if span.position == span.stop:
                os.fdatasync(descriptor)
                _mark_done(path, span.index)
        finally:
            os.close(descriptor)

    def _advance(self, span: _Range, descriptor: int, on_bytes: OnBytes) -> SourceUnreachable | None:
        """Write the data of one request; return the error if it is incomplete, or trickles."""
        first, began_s = span.position, time.monotonic()
        try:
            for data in self._source.read(span.file, span.position, span.stop):
                written = os.pwrite(descriptor, data, span.position)
                span.position += written
                with self._counting:
                    on_bytes(written)
                if written < len(data) or self._stopping.is_set():
                    break
                seconds = time.monotonic() - began_s
                if seconds > _RATE_WINDOW_S and span.position - first < seconds * _MIN_BYTES_PER_S:
                    return _TooSlow(
                        f"{self._source.uri} sends less than {_MIN_BYTES_PER_S} bytes a second of "
                        f"{span.file.name}. Try again later, or use a mirror; fetched data is kept."
                    )
        except SourceUnreachable as error:
            return error
        if span.position < span.stop:
            return SourceUnreachable(f"{span.file.name} of {self._source.uri} ended before its end.")
        return None


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _done(path: Path) -> Path:
    return path.with_name(f"{path.name}.done-{RANGE_BYTES}")


def _missing(path: Path, file: RemoteFile) -> list[_Range]:
    """Return the ranges of a file that are not on the disk; create an empty file at once."""
    if not file.size_bytes:
        path.touch()
    starts = range(0, file.size_bytes, RANGE_BYTES)
    done = b""
    if _done(path).exists() and _part(path).exists():
        with _done(path).open("rb") as marks:
            done = marks.read(len(starts))
    return [
        _Range(file, index, start, min(file.size_bytes, start + RANGE_BYTES))
        for index, start in enumerate(starts)
        if done[index : index + 1] != b"\1"
    ]


def _mark_done(path: Path, index: int) -> None:
    descriptor = os.open(_done(path), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, b"\1", index)
    finally:
        os.close(descriptor)


def _finish(path: Path) -> None:
    if _part(path).exists():
        _part(path).rename(path)
    for done in path.parent.glob(f"{glob.escape(path.name)}.done-*"):
        done.unlink()
