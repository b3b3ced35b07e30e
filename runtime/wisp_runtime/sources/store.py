"""Downloaded models on the disk: one folder a model and revision, which is there whole or not at all.

    CACHE/weights/PLACE/REVISION/            a model, with its manifest; never written again
    CACHE/weights/PLACE/REVISION.partial/    on its way
    CACHE/weights/PLACE/REVISION.lock        held by the process that fetches it
    CACHE/weights/PLACE/refs/WANTED          the revision that a branch or tag last meant

Any number of processes and pods may share it. Nothing is ever removed to make room.
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
from wisp_runtime.sources.listing import Listing, Source
from wisp_runtime.sources.lock import STALL_S
from wisp_runtime.sources.manifest import check_sizes
from wisp_runtime.sources.publish import OnProgress, publish, withdraw_if_damaged

WEIGHTS_DIR = "weights"
_ASK_S = 10.0
_ASK_AGAIN_S = 3.0  # with a copy at hand, a source that does not answer must not hold up a start

log = logging.getLogger(__name__)


def obtain(
    source: Source, cache_dir: Path, on_progress: OnProgress | None = None, *, stall_s: float = STALL_S
) -> Path:
    """Return the folder of the model in ``cache_dir``, fetching it first if it is not there.

    Args:
        source: where it comes from.
        cache_dir: see above.
        on_progress: ``on_progress(bytes_done, total_bytes)`` while this or another process fetches it.
        stall_s: how long another process that fetches it may stand still.

    Raises:
        RuntimeFailure: of the source.
        ModelNotFound: there is no model that we could run.
        WeightsUnreadable: the copy is damaged, or what arrived is not what the source promised.
        CacheUnusable: the folder cannot be written, or another process holds it and stands still.
        DiskFull: it does not fit on the disk.
    """
    place = cache_dir / WEIGHTS_DIR / source.place
    with _explained(cache_dir, source.uri):
        if source.pinned and (place / source.pinned).is_dir():
            check_sizes(place / source.pinned)
            return place / source.pinned
        listing = _ask(source, place)
        if isinstance(listing, Path):
            return listing
        folder = place / listing.revision
        if folder.is_dir():
            check_sizes(folder)
        else:
            publish(source, _model(source, listing), folder, on_progress or _ignore, stall_s)
        _remember(place, source.wanted, listing.revision)
    return folder


def repair(source: Source, cache_dir: Path, on_progress: OnProgress | None = None) -> Path:
    """Read every byte of the copy and fetch again what is damaged; otherwise as :func:`obtain`."""
    place = cache_dir / WEIGHTS_DIR / source.place
    revision = source.pinned or _remembered(place, source.wanted)
    if revision and (place / revision).is_dir():
        with _explained(cache_dir, source.uri):
            withdraw_if_damaged(place / revision)
    return obtain(source, cache_dir, on_progress)


def _ignore(_done: int, _total: int) -> None:
    """Nobody watches."""


def _ask(source: Source, place: Path) -> Listing | Path:
    """Ask the source what there is; where it cannot be asked, the copy that it last named will do."""
    known = _remembered(place, source.wanted)
    copy = place / known if known and (place / known).is_dir() else None
    try:
        return source.listing(_ASK_AGAIN_S if copy else _ASK_S)
    except SourceUnreachable as error:
        if copy is None:
            raise
        check_sizes(copy)
        log.warning("using the copy of %s in %s, which may be old: %s", source.uri, copy, error.message)
        return copy


def _model(source: Source, listing: Listing) -> Listing:
    """Refuse to download what is no model."""
    names = [file.name for file in listing.files]
    missing = [] if "config.json" in names else ["config.json"]
    missing += [] if any(name.endswith(".safetensors") for name in names) else ["*.safetensors"]
    if missing:
        raise ModelNotFound(
            f"{source.uri} has no {' and no '.join(missing)} at its top, so it is not a model that Wisp can "
            "run. Name a repository or prefix that holds both; GGUF files go through wisp-runtime convert."
        )
    return listing


def _remembered(place: Path, wanted: str) -> str | None:
    try:
        return _ref(place, wanted).read_text().strip() or None
    except OSError:
        return None


def _remember(place: Path, wanted: str, revision: str) -> None:
    """Keep what ``wanted`` means now, for when the source cannot be asked."""
    if _remembered(place, wanted) == revision:
        return
    ref = _ref(place, wanted)
    scratch = ref.with_name(f"{ref.name}.{os.getpid()}")
    try:
        ref.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(revision + "\n")
        scratch.rename(ref)
    except OSError as error:  # a cache filled elsewhere and mounted read-only is as good
        log.warning("%s cannot be written: %s", ref, error.strerror)


def _ref(place: Path, wanted: str) -> Path:
    return place / "refs" / quote(wanted, safe="")


@contextmanager
def _explained(cache_dir: Path, uri: str) -> Iterator[None]:
    """Turn what the disk says into sentences."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"the disk of {cache_dir} filled up while {uri} was downloaded. Free some space, or choose "
                "another disk with --cache-dir; what has arrived is kept."
            ) from error
        raise CacheUnusable(
            f"the cache {cache_dir} cannot be used by user {os.getuid()}: {error.strerror or error} "
            f"({error.filename or cache_dir}). Make it writable for that user, or choose another --cache-dir."
        ) from error
