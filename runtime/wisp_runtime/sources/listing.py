"""Interface of a source of weights: files with sizes and digests, under a revision, readable in ranges.

Hubs and buckets implement :class:`Source`; :mod:`.store` keeps the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Protocol

from wisp_plan.families.config_files import OWN_FILES
from wisp_plan.units import format_size
from wisp_runtime.errors import ModelUnsupported, SourceUnreachable

CHECKSUMS_FILE = "SHA256SUMS"
NEEDED_FILES = (
    "config.json",
    *OWN_FILES,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "*.safetensors",
    "model.safetensors.index.json",
    CHECKSUMS_FILE,
)
_DUPLICATES = "consolidated*.safetensors"  # the same weights again, in another layout

MAX_FILES = 4096
MAX_TOTAL_BYTES = 1 << 44
MAX_TEXT_BYTES = {
    "config.json": 1 << 20,
    **dict.fromkeys(OWN_FILES, 1 << 20),
    "generation_config.json": 1 << 20,
    "model.safetensors.index.json": 16 << 20,
    "tokenizer.json": 256 << 20,
    "tokenizer_config.json": 16 << 20,
    "special_tokens_map.json": 16 << 20,
    "chat_template.jinja": 4 << 20,
    "chat_template.json": 4 << 20,
    "modules.json": 1 << 20,
    CHECKSUMS_FILE: 1 << 20,
}
"""Maximum of each file that is read into memory; the weights are not."""

_REVISION = re.compile(r"(?!refs$)[0-9a-z]{2,64}")
_MAX_NAME_CHARACTERS = 200

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


def check_listing(listing: Listing, uri: str) -> None:
    """Refuse a listing that no model has: a source's answer decides neither a path nor this process's memory.

    Raises:
        SourceUnreachable: its revision, a name or a size is none.
        ModelUnsupported: it is larger than any model's.
    """
    names = [file.name for file in listing.files]
    if not is_revision(listing.revision) or len(set(names)) < len(names):
        raise malformed(uri)
    for file in listing.files:
        if not is_file_name(file.name) or not is_size(file.size_bytes):
            raise malformed(uri)
        limit_bytes = MAX_TEXT_BYTES.get(file.name, MAX_TOTAL_BYTES)
        if file.size_bytes > limit_bytes:
            raise _too_large(f"{file.name} of {uri}", file.size_bytes, limit_bytes)
    if listing.size_bytes > MAX_TOTAL_BYTES:
        raise _too_large(uri, listing.size_bytes, MAX_TOTAL_BYTES)
    if len(names) > MAX_FILES:
        raise ModelUnsupported(
            f"{uri} has {len(names)} files of a model; at most {MAX_FILES} are fetched. Check the URI."
        )


def malformed(uri: str) -> SourceUnreachable:
    """Make the error for a listing that is none."""
    return SourceUnreachable(
        f"the source of {uri} answered with a list of files that is none. Check HF_ENDPOINT, or the mirror "
        "that it names; a hub names a commit of 40 hexadecimal digits, and files with their sizes."
    )


def _too_large(what: str, size_bytes: int, limit_bytes: int) -> ModelUnsupported:
    return ModelUnsupported(
        f"{what} has {format_size(size_bytes)}, more than any model's; at most {format_size(limit_bytes)} "
        "are fetched. Check the URI."
    )


def is_revision(value: object) -> bool:
    """Return whether ``value`` can be the name of a folder of the cache."""
    return isinstance(value, str) and _REVISION.fullmatch(value) is not None


def is_file_name(value: object) -> bool:
    """Return whether ``value`` names a file within its folder, in printable characters."""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME_CHARACTERS:
        return False
    return value.isprintable() and "/" not in value and value not in (".", "..")


def is_size(value: object) -> bool:
    """Return whether ``value`` is a number of bytes."""
    return type(value) is int and 0 <= value < 1 << 63


def is_needed(name: str) -> bool:
    """Return whether a model needs the file ``name``; other formats and subfolders are not fetched."""
    if not is_file_name(name) or fnmatch(name, _DUPLICATES):
        return False
    return any(fnmatch(name, pattern) for pattern in NEEDED_FILES)
