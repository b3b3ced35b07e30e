"""Downloaded models on the disk: one folder a model and revision, which is there whole or not at all.

    CACHE/weights/PLACE/REVISION/            a model, with its manifest; never written again
    CACHE/weights/PLACE/REVISION.partial/    on its way
    CACHE/weights/PLACE/REVISION.lock        held by the process that fetches it
    CACHE/weights/PLACE/refs/WANTED          the revision that a branch or tag last meant

Any number of processes and pods may share it. Nothing is ever removed to make room.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from wisp_runtime.errors import SourceUnreachable, WeightsUnreadable
from wisp_runtime.loading.disk import require_space
from wisp_runtime.loading.listing import Listing, Source
from wisp_runtime.loading.lock import STALL_S, Held, Holder, locked
from wisp_runtime.loading.manifest import Manifest, check_sizes, verify
from wisp_runtime.loading.transfer import Transfer

WEIGHTS_DIR = "weights"
_ASK_S = 10.0
_ASK_AGAIN_S = 3.0  # with a copy at hand, a source that does not answer must not hold up a start
_SPARE_BYTES = 64 << 20

OnProgress = Callable[[int, int], None]
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
        WeightsUnreadable: the copy is damaged, or what arrived is not what the source promised.
        CacheUnusable: the folder cannot be written, or another process holds it and stands still.
        DiskFull: it does not fit on the disk.
    """
    place = cache_dir / WEIGHTS_DIR / source.place
    with _explained(cache_dir, source.uri):
        if source.pinned and (place / source.pinned).is_dir():
            check_sizes(place / source.pinned)
            return place / source.pinned
        listing = _listing(source, place)
        if isinstance(listing, Path):
            return listing
        folder = place / listing.revision
        if folder.is_dir():
            check_sizes(folder)
        else:
            _fetch(source, listing, folder, on_progress or _ignore, stall_s)
        _remember(place, source.wanted, listing.revision)
    return folder


def repair(source: Source, cache_dir: Path, on_progress: OnProgress | None = None) -> Path:
    """Read every byte of the copy, and fetch again what is damaged; otherwise as :func:`obtain`."""
    place = cache_dir / WEIGHTS_DIR / source.place
    revision = source.pinned or _remembered(place, source.wanted)
    folder = place / (revision or "")
    if revision and folder.is_dir():
        with _explained(cache_dir, source.uri), locked(_beside(folder, "lock"), lambda _holder: None) as held:
            _withdraw_if_damaged(folder, held)
    return obtain(source, cache_dir, on_progress)


def _ignore(_done: int, _total: int) -> None:
    """Nobody watches."""


def _listing(source: Source, place: Path) -> Listing | Path:
    """Ask the source what there is; where it cannot be asked, the copy that it last named will do."""
    known = _remembered(place, source.wanted)
    copy = place / known if known else None
    has_copy = copy is not None and copy.is_dir()
    try:
        return source.listing(_ASK_AGAIN_S if has_copy else _ASK_S)
    except SourceUnreachable as error:
        if copy is None or not has_copy:
            raise
        check_sizes(copy)
        log.warning("using the copy of %s at %s, which may be old: %s", source.uri, copy, error.message)
        return copy


def _fetch(source: Source, listing: Listing, folder: Path, on_progress: OnProgress, stall_s: float) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    waiting = _Waiting(source.uri, on_progress)
    with locked(_beside(folder, "lock"), waiting, stall_s) as held:
        if folder.is_dir():  # whoever held the lock before us fetched it
            check_sizes(folder)
            return
        partial = _beside(folder, "partial")
        partial.mkdir(exist_ok=True)
        _transfer(source, listing, partial, held, on_progress)
        _check(source, listing, partial, held)
        partial.rename(folder)
        _sync(folder.parent)


class _Waiting:
    """Says once who fetches the model meanwhile, and shows that one's progress as ours."""

    def __init__(self, uri: str, on_progress: OnProgress) -> None:
        self._uri, self._on_progress, self._said = uri, on_progress, ""

    def __call__(self, holder: Holder) -> None:
        if self._said != f"{holder.host} {holder.pid}":
            self._said = f"{holder.host} {holder.pid}"
            log.info("waiting for %s, which fetches %s", holder, self._uri)
        self._on_progress(holder.done_bytes, holder.total_bytes)


def _transfer(source: Source, listing: Listing, partial: Path, held: Held, on_progress: OnProgress) -> None:
    transfer = Transfer(source, listing.files, partial)
    require_space(partial, transfer.missing_bytes + _SPARE_BYTES, f"downloading {source.uri}")
    total = listing.size_bytes
    done = total - transfer.missing_bytes

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        held.beat(done, total)
        on_progress(done, total)

    on_bytes(0)
    transfer.run(on_bytes)


def _check(source: Source, listing: Listing, partial: Path, held: Held) -> None:
    """Compare every byte with the source's digests, and write the manifest.

    Raises:
        WeightsUnreadable: some file is wrong; it is removed, so that the next attempt fetches it again.
    """
    files, wrong = verify(partial, listing.files, _beats(held))
    for name in wrong:
        (partial / name).unlink()
    if wrong:
        raise WeightsUnreadable(
            f"{', '.join(wrong)} of {source.uri} arrived with other bytes than the source promised. "
            "Start again to fetch them once more; if it stays so, the source's copy is damaged."
        )
    Manifest(source.uri, listing.revision, files).write(partial)


def _withdraw_if_damaged(folder: Path, held: Held) -> None:
    """Make a published folder a partial one without its damaged files, if it has any."""
    try:
        manifest = check_sizes(folder)
        wrong = verify(folder, manifest.files, _beats(held))[1]
    except WeightsUnreadable as error:
        log.warning("%s", error.message)
        wrong = [file.name for file in _known(folder) if not _has_size(folder / file.name, file.size_bytes)]
    else:
        if not wrong:
            return
        log.warning("damaged in %s: %s", folder, ", ".join(wrong))
    for name in wrong:
        (folder / name).unlink(missing_ok=True)
    folder.rename(_beside(folder, "partial"))
