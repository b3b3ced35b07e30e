"""Service discovery from a JSON file, as ``wisp up`` writes it; read again whenever it changes.

A broken or absent file is reported once and changes nothing: the last good snapshot stays in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from wisp_gateway.discovery.snapshot import EMPTY, Snapshot, parse
from wisp_gateway.errors import DiscoveryError

log = logging.getLogger(__name__)

PERIOD_S = 0.1


class FileDiscovery:
    """Snapshots from one JSON file; detects changes by modification time, size and inode."""

    def __init__(self, path: Path) -> None:
        self.snapshot: Snapshot = EMPTY
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._last_warning = ""
        self._on_change: list[Callable[[Snapshot], None]] = []

    @property
    def is_synced(self) -> bool:
        """Always True: a missing file is an empty snapshot."""
        return True

    def watch(self, on_change: Callable[[Snapshot], None]) -> None:
        """Call ``on_change`` with the current snapshot, then with every new one."""
        self._on_change.append(on_change)
        on_change(self.snapshot)

    async def run(self) -> None:
        """Check the file every 100 ms until cancelled."""
        while True:
            self.refresh()
            await asyncio.sleep(PERIOD_S)

    def refresh(self) -> None:
        """Read the file if it changed, and call the watchers."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._seen:
                return
            snapshot = parse(self._path.read_bytes())
        except (OSError, UnicodeDecodeError, DiscoveryError) as error:
            self._warn(f"directory {self._path}: {error}; keeping the last good one")
            return
        self._seen, self._last_warning = stamp, ""
        if snapshot != self.snapshot:
            self.snapshot = snapshot
            for on_change in self._on_change:
                on_change(snapshot)

    def _warn(self, message: str) -> None:
        if message != self._last_warning:
            self._last_warning = message
            log.warning(message)
