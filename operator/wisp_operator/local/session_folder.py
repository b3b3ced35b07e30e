"""Folder of one ``wisp up``: its logs and the gateway's directory.

A temporary one is removed at the end. After a kill -9 it stays: the next ``wisp up`` removes folders whose
lock is free.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from wisp_operator.errors import WispError

PREFIX = "wisp-up-"
LOCK = "lock"


MIN_FREE_BYTES = 256 << 10  # keys, the gateway's directory and some logs


class FolderTaken(WispError):
    """Another ``wisp up`` works in the folder."""


class FolderUnwritable(WispError):
    """The folder cannot be written to: a full disk, or no right to."""

    def __init__(self, path: Path, error: OSError) -> None:
        why = error.strerror or str(error)
        super().__init__(
            f"cannot write in {path}: {why}. Free some space there, or choose another folder with "
            "--state-dir (without it: TMPDIR)."
        )


@contextmanager
def folder(chosen: Path | None, temporary: Path) -> Iterator[Path]:
    """Hold the folder ``chosen``, kept afterwards, or a new one below ``temporary``, removed afterwards.

    Raises:
        FolderTaken: another ``wisp up`` holds it.
        FolderUnwritable: it cannot be made, or its disk is full.
    """
    sweep(temporary)
    path = _made(chosen, temporary)
    try:
        with _locked(path):
            _require_space(path)
            yield path
    finally:
        if chosen is None:
            shutil.rmtree(path, ignore_errors=True)


def _made(chosen: Path | None, temporary: Path) -> Path:
    try:
        if chosen is None:
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=temporary))
        chosen.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderUnwritable(chosen or temporary, error) from error
    return chosen.resolve()


def _require_space(path: Path) -> None:
    """Write and remove a file: on a full disk the gateway would learn of no model."""
    probe = path / f"{PREFIX}space"
    try:
        probe.write_bytes(bytes(MIN_FREE_BYTES))
    except OSError as error:
        raise FolderUnwritable(path, error) from error
    finally:
        probe.unlink(missing_ok=True)


def sweep(temporary: Path) -> None:
    """Remove folders that killed runs of this user left below ``temporary``."""
    for path in temporary.glob(f"{PREFIX}*"):
        try:
            if path.stat().st_uid == os.getuid() and (path / LOCK).exists():
                with _locked(path):
                    shutil.rmtree(path, ignore_errors=True)
        except (OSError, FolderTaken, FolderUnwritable):  # gone meanwhile, or in use
            continue


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = (path / LOCK).open("ab")
    except OSError as error:
        raise FolderUnwritable(path, error) from error
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FolderTaken(
                f"{path} is in use by another wisp up. Choose another with --state-dir."
            ) from error
        yield lock
