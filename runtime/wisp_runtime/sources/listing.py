"""What a source of weights offers: files with sizes and digests, under a revision, readable in ranges.

Hubs and buckets both become a :class:`Source`; what happens to the bytes is :mod:`.store`'s business.
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
        name: its path below the model's folder.
        size_bytes: exact.
        digest: ``sha256:HEX``, ``git:HEX`` (a Git blob's SHA-1) or ``md5:HEX``; empty if the source has none.
        tag: what the source calls this version of it; empty if nothing.
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
    """Where a model can be fetched from.

    Attributes:
        uri: as the user wrote it, for messages.
        place: a folder name below the cache, different for different models.
        wanted: the branch, tag or commit that was asked for.
        pinned: the revision, if it is known without asking the source.
    """

    uri: str
    place: str
    wanted: str
    pinned: str | None

    def listing(self, timeout_s: float) -> Listing:
        """Ask the source what it holds.

        Raises:
            SourceUnreachable: no answer, or none that helps; a copy may do.
            RuntimeFailure: the source answered, and the answer was no.
        """

    def read(self, file: RemoteFile, start: int, stop: int) -> Iterator[Buffer]:
        """Yield the bytes of ``file`` from ``start`` up to ``stop``, in pieces of any length.

        Raises:
            SourceUnreachable: the connection broke or the server is busy; trying again may help.
            RuntimeFailure: trying again would not.
        """


def is_needed(name: str) -> bool:
    """Whether a model runs with the file ``name``; other formats and subfolders are left where they are."""
    if "/" in name or fnmatch(name, _DUPLICATES):
        return False
    return any(fnmatch(name, pattern) for pattern in NEEDED_FILES)
