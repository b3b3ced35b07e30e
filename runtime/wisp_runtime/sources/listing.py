"""Interface of a source of weights: files with sizes and digests, under a revision, readable in ranges.

Hubs and buckets implement :class:`Source`; :mod:`.store` keeps the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Protocol

CHECKSUMS_FILE = "SHA256SUMS"
NEEDED_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "*.safetensors",
    "model.safetensors.index.json",
    CHECKSUMS_FILE,
)
_DUPLICATES = "consolidated*.safetensors"  # the same weights again, in another layout

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a model.

    Attributes:
        name: path below the model's folder.
        size_bytes: exact size.
        digest: ``sha256:HEX``, ``git:HEX`` (a Git blob's SHA-1) or ``md5:HEX``; empty if the source has none.
        tag: the source's tag of this version of the file; empty if none.
    """

    name: str
    size_bytes: int
    digest: str = ""
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """A model at one revision: the same revision is always the same bytes."""

    revision: str
    files: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size_bytes for file in self.files)


class Source(Protocol):
    """Source of a model.

    Attributes:
        uri: URI as the user wrote it, for messages.
        cache_key: folder name below the cache, unique to the model.
        wanted: requested branch, tag or commit.
        pinned: revision, if known without a request to the source.
    """

    uri: str
    cache_key: str
    wanted: str
    pinned: str | None

    def listing(self, timeout_s: float) -> Listing:
        """Request the list of files.

        Raises:
            SourceUnreachable: no response, or a temporary failure; a cached copy may serve.
            RuntimeFailure: the source refused.
        """

    def read(self, file: RemoteFile, start: int, stop: int) -> Iterator[Buffer]:
        """Yield the bytes of ``file`` from ``start`` up to ``stop``, in buffers of any length.

        Raises:
            SourceUnreachable: the connection broke or the server is busy; a retry may help.
            RuntimeFailure: a retry would not help.
        """


def is_needed(name: str) -> bool:
    """Return whether a model needs the file ``name``; other formats and subfolders are not fetched."""
    if "/" in name or fnmatch(name, _DUPLICATES):
        return False
    return any(fnmatch(name, pattern) for pattern in NEEDED_FILES)
