"""Read what was fetched, on the disk itself, and compare it with what the source promised.

A hub promises SHA-256 sums (large files) and Git's (small ones). A bucket promises entity tags, which are
MD5 sums unless the object came in parts or is encrypted with a managed key; and a model may bring its own
``SHA256SUMS``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wisp_runtime.sources.listing import CHECKSUMS_FILE, RemoteFile

_THREADS = 4
_READ_BYTES = 4 << 20

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _Sums:
    """What the bytes of a file came to: its SHA-256, and whether that agrees with each promise."""

    file: RemoteFile
    sha256: str
    agrees: bool
    is_md5: bool


def verify(
    folder: Path, files: Sequence[RemoteFile], on_bytes: OnBytes
) -> tuple[tuple[RemoteFile, ...], list[str]]:
    """Read ``files`` in ``folder``, and make sure that they are on the disk.

    Args:
        folder: holds them all, with the right sizes.
        files: with the digests promised.
        on_bytes: called from several threads as bytes are read.

    Returns:
        The files that are right, with their SHA-256; and the names of those that are not.
    """
    listed = _listed(folder)
    with ThreadPoolExecutor(_THREADS, "wisp-verify") as pool:
        jobs = [pool.submit(_sum, folder, file, listed.get(file.name, ""), on_bytes) for file in files]
        sums = [job.result() for job in jobs]
    # Where not one entity tag is the MD5 sum, the bucket's tags are no MD5 sums.
    tags_count = any(one.is_md5 and one.agrees for one in sums)
    wrong = {one.file.name for one in sums if not one.agrees and (tags_count or not one.is_md5)}
    right = (one for one in sums if one.file.name not in wrong)
    whole = tuple(RemoteFile(one.file.name, one.file.size_bytes, f"sha256:{one.sha256}") for one in right)
    return whole, sorted(wrong)


def _sum(folder: Path, file: RemoteFile, listed: str, on_bytes: OnBytes) -> _Sums:
    kind, _, promised = file.digest.partition(":")
    sha256, other = hashlib.sha256(), _hash_of(kind, file)
    with (folder / file.name).open("rb") as stream:
        while data := stream.read(_READ_BYTES):
            sha256.update(data)
            if other is not None:
                other.update(data)
            on_bytes(len(data))
        os.fsync(stream.fileno())
    if listed:  # the model's own list is worth more than an entity tag
        return _Sums(file, sha256.hexdigest(), listed == sha256.hexdigest(), is_md5=False)
    found = other.hexdigest() if other is not None else sha256.hexdigest()
    return _Sums(file, sha256.hexdigest(), promised in ("", found), kind == "md5")


def _hash_of(kind: str, file: RemoteFile) -> Any:
    """The hash a source promised, if it is another than SHA-256."""
    if kind == "md5":
        return hashlib.md5(usedforsecurity=False)
    if kind == "git":
        return hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    return None


def _listed(folder: Path) -> dict[str, str]:
    """Read what ``sha256sum * > SHA256SUMS`` wrote, if the model comes with it."""
    path = folder / CHECKSUMS_FILE
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    pairs = [line.split(maxsplit=1) for line in lines]
    return {pair[1].lstrip("*").removeprefix("./"): pair[0].lower() for pair in pairs if len(pair) == 2}
