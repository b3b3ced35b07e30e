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


class FolderTaken(WispError):
    """Another ``wisp up`` works in the folder."""


@contextmanager
def folder(chosen: Path | None, temporary: Path) -> Iterator[Path]:
    """Hold the folder ``chosen``, kept afterwards, or a new one below ``temporary``, removed afterwards.

    Raises:
        FolderTaken: another ``wisp up`` holds it.
        OSError: it cannot be made.
    """
    sweep(temporary)
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        with _locked(chosen):
            yield chosen.resolve()
        return
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=temporary))
    try:
        with _locked(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sweep(temporary: Path) -> None:
    """Remove folders that killed runs of this user left below ``temporary``."""
    for path in temporary.glob(f"{PREFIX}*"):
        try:
            if path.stat().st_uid == os.getuid() and (path / LOCK).exists():
                with _locked(path):
                    shutil.rmtree(path, ignore_errors=True)
        except (OSError, FolderTaken):  # gone meanwhile, or in use
            continue


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    with (path / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FolderTaken(
                f"{path} is in use by another wisp up. Choose another with --state-dir."
            ) from error
        yield lock
