"""File lock of the cache: one process fetches, the others wait and read its progress.

An ``flock`` on a file of the cache: the kernel drops it when its holder dies, however it dies. The file
records the holder and its progress; it is never deleted, for a deleted lock excludes nobody.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from wisp_runtime.errors import CacheUnusable

STALL_S = 300.0
_POLL_S = 0.2
_HEARTBEAT_S = 0.5
_RECORD_BYTES = 512


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Holder of a lock, with the time of acquisition (Unix seconds) and its progress."""

    host: str
    pid: int
    since: float
    done_bytes: int = 0
    total_bytes: int = 0
    checked_bytes: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (for {time.time() - self.since:.0f} s)"


class HeldLock:
    """A lock of this process; :meth:`heartbeat` reports progress to waiting processes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._heartbeat_s = file, 0.0
        self._holder = LockHolder(socket.gethostname(), os.getpid(), time.time())
        self._write()

    def heartbeat(self, done_bytes: int, total_bytes: int, checked_bytes: int = 0) -> None:
        """Record progress; cheap, it writes at most twice a second."""
        begins = total_bytes != self._holder.total_bytes
        self._holder = replace(
            self._holder, done_bytes=done_bytes, total_bytes=total_bytes, checked_bytes=checked_bytes
        )
        if begins or time.monotonic() - self._heartbeat_s >= _HEARTBEAT_S:
            self._write()

    def _write(self) -> None:
        self._heartbeat_s = time.monotonic()
        record = json.dumps(asdict(self._holder)).encode().ljust(_RECORD_BYTES)
        os.pwrite(self._file.fileno(), record, 0)


@contextmanager
def locked(path: Path, on_wait: Callable[[LockHolder], None], stall_s: float = STALL_S) -> Iterator[HeldLock]:
    """Hold the lock at ``path``, waiting for it as long as its holder makes progress.

    Args:
        path: lock file; its folder exists.
        on_wait: called repeatedly with the current holder while waiting.
        stall_s: timeout of a holder without progress.

    Raises:
        CacheUnusable: the holder made no progress, or files cannot be locked there.
    """
    # Not mode "a": a write at an offset would still go to the end.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
        _acquire(file, path, on_wait, stall_s)
        yield HeldLock(file)


def _acquire(file: IO[bytes], path: Path, on_wait: Callable[[LockHolder], None], stall_s: float) -> None:
    seen: LockHolder | None = None
    moved_s = time.monotonic()
    while not _try_lock(file, path):
        holder = _read(file)
        if holder is not None and holder != seen:
            seen, moved_s = holder, time.monotonic()
        if seen is not None:
            on_wait(seen)
        if time.monotonic() - moved_s > stall_s:
            raise CacheUnusable(
                f"{seen or 'another process'} holds {path} and made no progress for {stall_s:.0f} s. "
                "End that process, or wait for it; its fetched data is kept."
            )
        time.sleep(_POLL_S)


def _try_lock(file: IO[bytes], path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EINTR:
            return False
        raise CacheUnusable(
            f"{path} cannot be locked: {error.strerror}. Use a cache directory on a file system with locks "
            "(a local disk, or NFS version 4)."
        ) from error
    return True


def _read(file: IO[bytes]) -> LockHolder | None:
    """Return the recorded holder; None while there is none, or an incomplete record."""
    try:
        record = json.loads(os.pread(file.fileno(), _RECORD_BYTES, 0))
        host = "".join(filter(str.isprintable, str(record["host"])))
        counts = {name: int(record[name]) for name in ("pid", "done_bytes", "total_bytes", "checked_bytes")}
        return LockHolder(host=host, since=float(record["since"]), **counts)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
