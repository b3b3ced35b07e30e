"""Manifest of a fetched model: every file's size and SHA-256, written after all files were verified.

Sizes are compared at every use, which is cheap and detects truncated and missing files; bytes are read again
only on request (``wisp-runtime pull --repair``).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.sources.listing import RemoteFile, is_file_name, is_size

MANIFEST_FILE = ".wisp-manifest.json"
_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """Files of a fetched model, and their source."""

    uri: str
    revision: str
    files: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size_bytes for file in self.files)

    def write(self, folder: Path) -> None:
        """Write the manifest into ``folder``, synced to the disk."""
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
        with (folder / MANIFEST_FILE).open() as file:
            content = json.loads(file.read(_MAX_BYTES))
        files = tuple(_file(name, entry) for name, entry in content["files"].items())
        return Manifest(str(content["uri"]), str(content["revision"]), files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsUnreadable(f"{folder / MANIFEST_FILE} cannot be read. {remedy(folder)}") from error


def _file(name: object, entry: dict[str, object]) -> RemoteFile:
    """Read a file of a manifest, which may be damaged: its name must not lead out of the folder.

    Raises:
        ValueError: no name, or no size.
    """
    size, digest = entry["size"], entry["digest"]
    if not is_file_name(name) or not is_size(size) or not isinstance(digest, str):
        raise ValueError(f"no file: {name!r}")
    assert isinstance(name, str)
    assert isinstance(size, int)
    return RemoteFile(name, size, digest=digest)


def check_sizes(folder: Path) -> Manifest:
    """Compare the files in ``folder`` with its manifest, by size.

    Raises:
        WeightsUnreadable: a file is missing or of another length; the message names the remedy.
    """
    manifest = read_manifest(folder)
    for file in manifest.files:
        path = folder / file.name
        if not has_size(path, file):
            size = path.stat().st_size if path.is_file() else None
            damage = "is missing" if size is None else f"has {size} bytes instead of {file.size_bytes}"
            raise WeightsUnreadable(
                f"the cached copy of {manifest.uri} is damaged: {path} {damage}. " + remedy(folder, manifest)
            )
    return manifest


def has_size(path: Path, file: RemoteFile) -> bool:
    """Return whether ``path`` is a file of the size of ``file``."""
    return path.is_file() and path.stat().st_size == file.size_bytes


def remedy(folder: Path, manifest: Manifest | None = None) -> str:
    """Return the remedy of a damaged copy."""
    cache_dir, uri = folder.parents[2], manifest.uri if manifest else "MODEL"
    if manifest and uri.startswith("hf://"):
        uri += f" --revision {manifest.revision}"
    return (
        f"Run wisp-runtime pull --repair {uri} --cache-dir {cache_dir}, or remove {folder} and start again."
    )
