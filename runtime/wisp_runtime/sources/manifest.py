"""What a fetched model must look like: every file's size and SHA-256, written when all of it was checked.

Sizes are compared at every use, which is cheap and finds what was cut short or removed; bytes are read
again only when somebody asks (``wisp-runtime pull --repair``).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.sources.listing import RemoteFile

MANIFEST_FILE = ".wisp-manifest.json"


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
        if not has_size(path, file):
            size = path.stat().st_size if path.is_file() else None
            found = "is missing" if size is None else f"has {size} bytes instead of {file.size_bytes}"
            raise WeightsUnreadable(
                f"the cached copy of {manifest.uri} is damaged: {path} {found}. " + remedy(folder, manifest)
            )
    return manifest


def has_size(path: Path, file: RemoteFile) -> bool:
    """Whether ``path`` is a file as long as ``file``."""
    return path.is_file() and path.stat().st_size == file.size_bytes


def remedy(folder: Path, manifest: Manifest | None = None) -> str:
    """How to mend a damaged copy."""
    cache_dir, uri = folder.parents[2], manifest.uri if manifest else "MODEL"
    if manifest and uri.startswith("hf://"):
        uri += f" --revision {manifest.revision}"
    return (
        f"Run wisp-runtime pull --repair {uri} --cache-dir {cache_dir}, or remove {folder} and start again."
    )
