"""Cache of downloaded models: one folder per model and revision, published complete or not at all.

    CACHE/weights/KEY/REVISION/            a model, with its manifest; never written again
    CACHE/weights/KEY/REVISION.partial/    a download in progress
    CACHE/weights/KEY/REVISION.lock        lock of the process that fetches it
    CACHE/weights/KEY/refs/WANTED          latest known revision of a branch or tag

Any number of processes and pods may share it. Nothing is ever evicted.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from wisp_runtime.errors import CacheUnusable, DiskFull, ModelNotFound, SourceUnreachable
from wisp_runtime.sources.adopt import copies_of, is_of_namespace
from wisp_runtime.sources.disk import NODE_SHARE
from wisp_runtime.sources.listing import Listing, Source, check_listing, is_revision
from wisp_runtime.sources.lock import STALL_S
from wisp_runtime.sources.manifest import check_sizes
from wisp_runtime.sources.publish import OnProgress, publish, withdraw_if_damaged

WEIGHTS_DIR = "weights"
_MAX_REF_BYTES = 128
_ASK_S = 10.0
_ASK_WITH_COPY_S = 3.0  # with a cached copy, an unreachable source must not delay a start

log = logging.getLogger(__name__)


def obtain(
    source: Source, cache_dir: Path, on_progress: OnProgress | None = None, *, stall_s: float = STALL_S
) -> Path:
    """Return the folder of the model in ``cache_dir``, fetching it first if it is missing.

    Args:
        source: source of the model.
        cache_dir: root of the cache.
        on_progress: ``on_progress(bytes_done, total_bytes)`` while this or another process fetches it.
        stall_s: timeout of another process that fetches it without progress.

    Raises:
        RuntimeFailure: a failure of the source.
        ModelNotFound: the source has no supported model.
        WeightsUnreadable: the copy is damaged, or fetched files differ from the source's digests.
        CacheUnusable: the folder cannot be written, or another process holds the lock without progress.
        DiskFull: too little free space.
    """
    model_dir = cache_dir / WEIGHTS_DIR / source.cache_key
    with _explained(cache_dir, source.uri):
        if source.pinned and (model_dir / source.pinned).is_dir():
            check_sizes(model_dir / source.pinned)
            return model_dir / source.pinned
        listing = _ask(source, model_dir)
        if isinstance(listing, Path):
            return listing
        folder = model_dir / listing.revision
        if folder.is_dir():
            check_sizes(folder)
        else:
            copies = copies_of(cache_dir, folder.relative_to(cache_dir))
            share = NODE_SHARE if is_of_namespace(cache_dir) else 0.0
            publish(source, _model(source, listing), folder, on_progress or _ignore, stall_s, copies, share)
        _remember(model_dir, source.wanted, listing.revision)
    return folder


def repair(source: Source, cache_dir: Path, on_progress: OnProgress | None = None) -> Path:
    """Verify every byte of the copy and refetch damaged files; otherwise as :func:`obtain`."""
    model_dir = cache_dir / WEIGHTS_DIR / source.cache_key
    revision = source.pinned or _remembered(model_dir, source.wanted)
    if revision and (model_dir / revision).is_dir():
        with _explained(cache_dir, source.uri):
            withdraw_if_damaged(model_dir / revision)
    return obtain(source, cache_dir, on_progress)


def _ignore(_done: int, _total: int) -> None:
    """Report nowhere."""


def _ask(source: Source, model_dir: Path) -> Listing | Path:
    """Return the source's listing; where it is unreachable, the copy of its latest known revision."""
    known = _remembered(model_dir, source.wanted)
    copy = model_dir / known if known and (model_dir / known).is_dir() else None
    try:
        listing = source.listing(_ASK_WITH_COPY_S if copy else _ASK_S)
        check_listing(listing, source.uri)
        return listing
    except SourceUnreachable as error:
        if copy is None:
            raise
        check_sizes(copy)
        log.warning("using the copy of %s in %s, which may be old: %s", source.uri, copy, error.message)
        return copy


def _model(source: Source, listing: Listing) -> Listing:
    """Refuse to download a listing that is no model."""
    names = [file.name for file in listing.files]
    missing = [] if "config.json" in names else ["config.json"]
    missing += [] if any(name.endswith(".safetensors") for name in names) else ["*.safetensors"]
    if missing:
        raise ModelNotFound(
            f"{source.uri} has no {' and no '.join(missing)} at its top, so it is not a model that Wisp can "
            "run. Name a repository or prefix that holds both, or download a GGUF file and name its path."
        )
    return listing


def _remembered(model_dir: Path, wanted: str) -> str | None:
    try:
        with _ref(model_dir, wanted).open() as file:
            revision = file.read(_MAX_REF_BYTES).strip()
    except (OSError, ValueError):
        return None
    return revision if is_revision(revision) else None


def _remember(model_dir: Path, wanted: str, revision: str) -> None:
    """Record the revision of ``wanted``, for when the source is unreachable."""
    if _remembered(model_dir, wanted) == revision:
        return
    ref = _ref(model_dir, wanted)
    scratch = ref.with_name(f"{ref.name}.{os.getpid()}")
    try:
        ref.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(revision + "\n")
        scratch.rename(ref)
    except OSError as error:  # a cache filled elsewhere and mounted read-only works too
        log.warning("%s cannot be written: %s", ref, error.strerror)


def _ref(model_dir: Path, wanted: str) -> Path:
    return model_dir / "refs" / quote(wanted, safe="")


@contextmanager
def _explained(cache_dir: Path, uri: str) -> Iterator[None]:
    """Turn errors of the disk into ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"the disk of {cache_dir} filled up while {uri} was downloaded. Free some space, or choose "
                "another disk with --cache-dir; fetched data is kept."
            ) from error
        raise CacheUnusable(
            f"the cache {cache_dir} cannot be used by user {os.getuid()}: {error.strerror or error} "
            f"({error.filename or cache_dir}). Make it writable for that user, or choose another --cache-dir."
        ) from error
