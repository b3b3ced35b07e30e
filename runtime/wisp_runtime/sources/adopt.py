"""Take weights from other namespaces' copies on the same disk, each file verified before it is used.

    CACHE/namespaces/NAMESPACE/weights/…   downloads of one namespace
    CACHE/weights/…                        downloads of earlier versions, of all namespaces

A copy elsewhere is trusted with nothing: a file of it is linked, read, and kept only if its SHA-256 is the
one that this namespace's own request to the source announced. The source must also send this namespace a byte
of each file, since a gated model's page shows sums to everybody. A link takes no space, and is one file of
the page cache.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from wisp_runtime.errors import RuntimeFailure
from wisp_runtime.sources.listing import Listing, RemoteFile, Source
from wisp_runtime.sources.manifest import has_size
from wisp_runtime.sources.verify import verify

NAMESPACES_DIR = "namespaces"
MAX_COPIES = 2  # a wrong copy costs the time of reading it

log = logging.getLogger(__name__)


def adopt(
    source: Source, listing: Listing, copies: Sequence[Path], partial: Path, on_bytes: Callable[[int], None]
) -> None:
    """Link verified files of ``copies`` into ``partial``, where they are missing.

    Args:
        copies: folders that may hold the same revision.
        on_bytes: called from several threads as bytes are read.
    """
    for copy in copies:
        missing = [file for file in listing.files if _is_adoptable(file, partial)]
        linked = [file for file in missing if _link(copy / file.name, partial / file.name, file)]
        wrong = set(verify(partial, linked, on_bytes)[1]) if linked else set()
        refused = [file for file in linked if file.name not in wrong and not _may_read(source, file)]
        for name in (*wrong, *(file.name for file in refused)):
            (partial / name).unlink()
        if wrong:
            log.warning(
                "not taken from %s: %s, which differ from their source", copy, ", ".join(sorted(wrong))
            )


def copies_of(cache_dir: Path, place: Path) -> list[Path]:
    """Return folders of the same revision in the caches beside ``cache_dir``, if that is a namespace's.

    Args:
        cache_dir: root of the cache, ``CACHE/namespaces/NAMESPACE``.
        place: folder of the revision below it.
    """
    if not is_of_namespace(cache_dir):
        return []
    beside = cache_dir.parent.iterdir() if cache_dir.parent.is_dir() else ()
    roots = (cache_dir.parents[1], *sorted(path for path in beside if path != cache_dir))
    folders = (root / place for root in roots)
    return list(islice((folder for folder in folders if folder.is_dir()), MAX_COPIES))


def is_of_namespace(cache_dir: Path) -> bool:
    """Whether ``cache_dir`` is a namespace's folder on the disk of a node, which others use too."""
    return cache_dir.parent.name == NAMESPACES_DIR


def _is_adoptable(file: RemoteFile, partial: Path) -> bool:
    is_large = file.name.endswith(".safetensors")  # others are fetched in no time
    return is_large and file.digest.startswith("sha256:") and not (partial / file.name).exists()


def _link(stored: Path, target: Path, file: RemoteFile) -> bool:
    try:
        if stored.is_symlink() or not has_size(stored, file):
            return False
        os.link(stored, target, follow_symlinks=False)
    except OSError:  # another file system, or a copy that may not be read: it is fetched
        return False
    return True


def _may_read(source: Source, file: RemoteFile) -> bool:
    """Whether the source sends a byte of ``file`` to this namespace; else fetching will say why not."""
    try:
        return file.size_bytes == 0 or any(source.read(file, 0, 1))
    except RuntimeFailure:
        return False
