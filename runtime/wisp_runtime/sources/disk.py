"""Refuse work for which a disk has too little space, before it begins."""

from __future__ import annotations

import shutil
from pathlib import Path

from wisp_plan.units import format_size
from wisp_runtime.errors import DiskFull


def require_space(folder: Path, needed_bytes: int, purpose: str) -> None:
    """Check that the disk of ``folder`` (which need not exist yet) has ``needed_bytes`` free.

    Raises:
        DiskFull: fewer bytes are free; the message names both numbers and the remedy.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < needed_bytes:
        raise DiskFull(
            f"{purpose} needs {format_size(needed_bytes)} in {folder}, which has "
            f"{format_size(free_bytes)} free. Free some space, or choose another disk.",
            neededBytes=needed_bytes,
            freeBytes=free_bytes,
        )
