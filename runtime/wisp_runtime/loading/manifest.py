"""What a fetched model must look like: every file's size and SHA-256, written when all of it was checked.

Sizes are compared at every use, which is cheap and finds what was cut short or removed; bytes are read
again only when somebody asks (``wisp-runtime pull --repair``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.loading.listing import CHECKSUMS_FILE, RemoteFile

MANIFEST_FILE = ".wisp-manifest.json"
_THREADS = 4
_READ_BYTES = 4 << 20

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a fetched model, and where they came from."""

    uri: str
    revision: str
    files: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size_bytes for file in self.files)

    def write(self, folder: Path) -> None:
        """Write it into ``folder``, on the disk itself."""
        files = {file.name: {"size": file.size_bytes, "digest": file.digest} for file in self.files}
        text = json.dumps({"uri": self.uri, "revision": self.revision, "files": files}, indent=1)
        with (folder / MANIFEST_FILE).open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest in ``folder``.

    Raises:
        WeightsUnreadable: there is none, or it is damaged.
    """
    try:
        found = json.loads((folder / MANIFEST_FILE).read_text())
        files = tuple(
            RemoteFile(name, one["size"], digest=one["digest"]) for name, one in found["files"].items()
        )
        return Manifest(found["uri"], found["revision"], files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsUnreadable(f"{folder / MANIFEST_FILE} cannot be read. {remedy(folder)}") from error


def check_sizes(folder: Path) -> Manifest:
    """Compare the files in ``folder`` with its manifest, by size.

    Raises:
        WeightsUnreadable: one is missing or of another length; the message says how to mend it.
    """
    manifest = read_manifest(folder)
    for file in manifest.files:
        path = folder / file.name
        size = path.stat().st_size if path.is_file() else None
        if size != file.size_bytes:
            found = "is missing" if size is None else f"has {size} bytes instead of {file.size_bytes}"
            raise WeightsUnreadable(
                f"the cached copy of {manifest.uri} is damaged: {path} {found}. {remedy(folder, manifest.uri)}"
            )
    return manifest


def remedy(folder: Path, uri: str = "URI") -> str:
    """How to mend a damaged copy."""
    cache_dir = folder.parents[2]
    return (
        f"Run wisp-runtime pull --repair {uri} --cache-dir {cache_dir}, or remove {folder} and start again."
    )


def verify(
    folder: Path, files: Iterable[RemoteFile], on_bytes: OnBytes
) -> tuple[tuple[RemoteFile, ...], list[str]]:
    """Read every file, on the disk itself, and compare it with its digest.

    Returns:
        The files with their SHA-256, and the names of those whose bytes are wrong.
    """
    expected = _checksums(folder)
    wanted = list(files)
    with ThreadPoolExecutor(_THREADS, "wisp-verify") as pool:
        jobs = [
            pool.submit(_verify, folder / file.name, file, expected.get(file.name, ""), on_bytes)
            for file in wanted
        ]
        sums = [job.result() for job in jobs]
    whole = tuple(
        RemoteFile(file.name, file.size_bytes, f"sha256:{sha256}")
        for file, sha256 in zip(wanted, sums, strict=True)
        if sha256
    )
    return whole, [file.name for file, sha256 in zip(wanted, sums, strict=True) if not sha256]


def _verify(path: Path, file: RemoteFile, also: str, on_bytes: OnBytes) -> str:
    """Return the SHA-256 of a file, or nothing if it is not what it should be."""
    kind, _, digest = file.digest.partition(":")
    sha256, other = hashlib.sha256(), _other(kind, file)
    with path.open("rb") as stream:
        while data := stream.read(_READ_BYTES):
            sha256.update(data)
            other.update(data)
            on_bytes(len(data))
        os.fsync(stream.fileno())
    found = {"sha256": sha256.hexdigest(), "": ""}.get(kind, other.hexdigest())
    return sha256.hexdigest() if found == digest and also in ("", sha256.hexdigest()) else ""


class _Unneeded:
    """A hash of nothing, where SHA-256 is all there is to compare."""

    def update(self, data: bytes, /) -> None:
        """Take no notice."""

    def hexdigest(self) -> str:
        """Return nothing."""
        return ""


def _other(kind: str, file: RemoteFile) -> Any:
    if kind == "md5":
        return hashlib.md5(usedforsecurity=False)
    if kind == "git":
        return hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    return _Unneeded()


def _checksums(folder: Path) -> dict[str, str]:
    """Read what ``sha256sum * > SHA256SUMS`` wrote, if the model comes with it."""
    path = folder / CHECKSUMS_FILE
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    pairs = [line.split(maxsplit=1) for line in lines]
    return {pair[1].lstrip("*").removeprefix("./"): pair[0].lower() for pair in pairs if len(pair) == 2}
