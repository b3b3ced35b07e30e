"""Fetch a model into a folder atomically: it appears complete or not at all; one process at a time."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.sources.adopt import adopt
from wisp_runtime.sources.disk import require_space
from wisp_runtime.sources.listing import Listing, Source
from wisp_runtime.sources.lock import HeldLock, LockHolder, locked
from wisp_runtime.sources.manifest import MANIFEST_FILE, Manifest, check_sizes, has_size, read_manifest
from wisp_runtime.sources.transfer import Transfer
from wisp_runtime.sources.verify import verify

_SPARE_BYTES = 64 << 20

OnProgress = Callable[[int, int], None]
log = logging.getLogger(__name__)


def publish(
    source: Source,
    listing: Listing,
    folder: Path,
    on_progress: OnProgress,
    stall_s: float,
    copies: Sequence[Path] = (),
    kept_share: float = 0.0,
) -> None:
    """Fetch the files of ``listing`` into ``folder``, unless another process does it first.

    Files of ``copies`` are taken where they are the same (:mod:`.adopt`), and ``kept_share`` of the disk
    stays free.

    Raises: as :func:`.store.obtain`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(_sibling(folder, "lock"), _Waiting(source.uri, on_progress), stall_s) as held:
        if folder.is_dir():  # the previous holder of the lock fetched it
            check_sizes(folder)
            return
        partial = _sibling(folder, "partial")
        partial.mkdir(exist_ok=True)
        adopt(source, listing, copies, partial, _Checked(held, listing.size_bytes))
        _transfer(source, listing, partial, held, on_progress, kept_share)
        _check(source.uri, listing, partial, held)
        partial.rename(folder)
        _sync(folder.parent)


def withdraw_if_damaged(folder: Path) -> None:
    """Verify every byte of a published model; if any is wrong, unpublish it and delete the wrong files."""
    with locked(_sibling(folder, "lock"), _Waiting(str(folder), _ignore)) as held:
        try:
            files = read_manifest(folder).files
        except WeightsUnreadable as error:
            log.warning("%s", error.message)
            _withdraw(folder, [])
            return
        present = [file for file in files if has_size(folder / file.name, file)]
        wrong = verify(folder, present, _Checked(held, sum(file.size_bytes for file in files)))[1]
        wrong += [file.name for file in files if file not in present]
        if wrong:
            log.warning("damaged in %s: %s", folder, ", ".join(wrong))
            _withdraw(folder, wrong)


def _withdraw(folder: Path, wrong: list[str]) -> None:
    partial = _sibling(folder, "partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in (*wrong, MANIFEST_FILE):
        (folder / name).unlink(missing_ok=True)
    folder.rename(partial)


def _transfer(
    source: Source,
    listing: Listing,
    partial: Path,
    held: HeldLock,
    on_progress: OnProgress,
    kept_share: float,
) -> None:
    transfer = Transfer(source, listing.files, partial)
    needed_bytes = transfer.missing_bytes + _SPARE_BYTES
    require_space(partial, needed_bytes, f"downloading {source.uri}", kept_share=kept_share)
    done = listing.size_bytes - transfer.missing_bytes
    transfer.run(_Count(held, on_progress, done, listing.size_bytes))


def _check(uri: str, listing: Listing, partial: Path, held: HeldLock) -> None:
    """Compare every byte with the source's digests, and write the manifest.

    Raises:
        WeightsUnreadable: a file is wrong; it is deleted, so that the next attempt fetches it again.
    """
    files, wrong = verify(partial, listing.files, _Checked(held, listing.size_bytes))
    for name in wrong:
        (partial / name).unlink()
    if wrong:
        raise WeightsUnreadable(
            f"{', '.join(wrong)} of {uri} arrived with other digests than the source announced. "
            "Start again to refetch them; if that does not help, the source's copy is damaged."
        )
    Manifest(uri, listing.revision, files).write(partial)


class _Count:
    """Counter of fetched bytes from several threads; reports to ``on_progress`` and to the lock's file."""

    def __init__(self, held: HeldLock, on_progress: OnProgress, done: int, total: int) -> None:
        self._held, self._on_progress, self._done, self._total = held, on_progress, done, total
        self._lock = Lock()
        self(0)

    def __call__(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._held.heartbeat(self._done, self._total)
            self._on_progress(self._done, self._total)


class _Checked:
    """Counter of verified bytes from several threads; reports to the lock's file."""

    def __init__(self, held: HeldLock, total: int) -> None:
        self._held, self._done, self._total = held, 0, total
        self._lock = Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._held.heartbeat(self._total, self._total, self._done)


class _Waiting:
    """Logs the holder of the lock once, and reports its progress as this process's."""

    def __init__(self, model: str, on_progress: OnProgress) -> None:
        self._model, self._on_progress, self._logged = model, on_progress, ""

    def __call__(self, holder: LockHolder) -> None:
        if self._logged != f"{holder.host} {holder.pid}":
            self._logged = f"{holder.host} {holder.pid}"
            log.warning("waiting for %s, which fetches %s", holder, self._model)
        self._on_progress(holder.done_bytes, holder.total_bytes)


def _ignore(_done: int, _total: int) -> None:
    """Report nowhere."""


def _sibling(folder: Path, ending: str) -> Path:
    return folder.with_name(f"{folder.name}.{ending}")


def _sync(folder: Path) -> None:
    """Sync the names in ``folder`` to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
