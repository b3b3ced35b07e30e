"""Verify fetched files on the disk against the source's digests.

A hub has SHA-256 sums (large files) and Git's (small ones). A bucket has entity tags, which are MD5 sums
unless the object was uploaded in parts or is encrypted with a managed key; and a model may contain its own
``SHA256SUMS``, which outranks a bucket's tags, but never a hub's sums.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wisp_runtime.sources.listing import CHECKSUMS_FILE, MAX_TEXT_BYTES, RemoteFile

_THREADS = 4
_READ_BYTES = 4 << 20

OnBytes = Callable[[int], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of a file: its SHA-256, and whether it agrees with the expected digest."""

    file: RemoteFile
    sha256: str
    agrees: bool
    is_md5: bool


def verify(
    folder: Path, files: Sequence[RemoteFile], on_bytes: OnBytes
) -> tuple[tuple[RemoteFile, ...], list[str]]:
    """Read and sync ``files`` in ``folder``.

    Args:
        folder: folder of all of them, with the right sizes.
        files: files with their expected digests.
        on_bytes: called from several threads as bytes are read.

    Returns:
        The correct files, with their SHA-256; and the names of the wrong ones.
    """
    listed = _listed(folder)
    with ThreadPoolExecutor(_THREADS, "wisp-verify") as pool:
        jobs = [pool.submit(_sum, folder, file, listed.get(file.name, ""), on_bytes) for file in files]
        sums = [job.result() for job in jobs]
    # If no entity tag at all is the MD5 sum, the bucket's tags are no MD5 sums.
    tags_count = any(each.is_md5 and each.agrees for each in sums)
    wrong = {each.file.name for each in sums if not each.agrees and (tags_count or not each.is_md5)}
    right = (each for each in sums if each.file.name not in wrong)
    verified = (RemoteFile(each.file.name, each.file.size_bytes, f"sha256:{each.sha256}") for each in right)
    return tuple(verified), sorted(wrong)


def _sum(folder: Path, file: RemoteFile, listed: str, on_bytes: OnBytes) -> _Sums:
    kind, _, expected = file.digest.partition(":")
    sha256, other = hashlib.sha256(), _hash_of(kind, file)
    with (folder / file.name).open("rb") as stream:
        while data := stream.read(_READ_BYTES):
            sha256.update(data)
            if other is not None:
                other.update(data)
            on_bytes(len(data))
        os.fsync(stream.fileno())
    is_listed = listed == sha256.hexdigest()
    if listed and kind in ("", "md5"):  # the model's own list takes precedence over an entity tag
        return _Sums(file, sha256.hexdigest(), is_listed, is_md5=False)
    actual = other.hexdigest() if other is not None else sha256.hexdigest()
    agrees = expected in ("", actual)
    if listed and agrees and not is_listed:
        log.warning(
            "%s differs from %s, which is stale: the source's own sum agrees", file.name, CHECKSUMS_FILE
        )
    return _Sums(file, sha256.hexdigest(), agrees, kind == "md5")


def _hash_of(kind: str, file: RemoteFile) -> Any:
    """Return the hash of the source's digest, if it is another than SHA-256."""
    if kind == "md5":
        return hashlib.md5(usedforsecurity=False)
    if kind == "git":
        return hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    return None


def _listed(folder: Path) -> dict[str, str]:
    """Read the model's ``SHA256SUMS`` (output of ``sha256sum *``), if it has one."""
    path = folder / CHECKSUMS_FILE
    lines = []
    if path.is_file():
        with path.open(errors="replace") as file:
            lines = file.read(MAX_TEXT_BYTES[CHECKSUMS_FILE]).splitlines()
    pairs = [line.split(maxsplit=1) for line in lines]
    return {pair[1].lstrip("*").removeprefix("./"): pair[0].lower() for pair in pairs if len(pair) == 2}
