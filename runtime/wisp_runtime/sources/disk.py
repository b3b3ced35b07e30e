"""Refuse work for which a disk has too little space, before it begins."""

from __future__ import annotations

import shutil
from pathlib import Path

from wisp_plan.units import format_size
from wisp_runtime.errors import DiskFull

NODE_SHARE = 0.1
"""Share of a node's disk that downloads leave free: below it the kubelet evicts pods, whosever they are."""


def require_space(folder: Path, needed_bytes: int, purpose: str, *, kept_share: float = 0.0) -> None:
    """Check that the disk of ``folder`` (which need not exist yet) has ``needed_bytes`` free.

    Args:
        purpose: subject of the message.
        kept_share: share of the disk that must stay free.

    Raises:
        DiskFull: fewer bytes are free; the message names both numbers and the remedy.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    usage = shutil.disk_usage(existing)
    free_bytes = max(0, usage.free - int(usage.total * kept_share))
    if free_bytes < needed_bytes:
        raise DiskFull(
            f"{purpose} needs {format_size(needed_bytes)} in {folder}, which has "
            f"{format_size(free_bytes)} free{_kept(kept_share)}. Free some space, or choose another disk.",
            neededBytes=needed_bytes,
            freeBytes=free_bytes,
        )


def _kept(share: float) -> str:
    return f" beside the {share:.0%} of the disk that are left to the node" if share else ""
