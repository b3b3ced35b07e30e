"""How much memory this process may still take on the host: the machine's, or less if its cgroup says so.

Asked by a runtime before it reads weights and by ``wisp up`` before it starts one, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int:
    """Return the least of what the machine and each cgroup around this process have left.

    Memory that only caches files counts as available: the kernel drops it when asked for more.

    Args:
        root: where ``proc`` and ``sys`` are; another than ``/`` in tests.
    """
    return min(_machine_bytes(root), *_cgroups_bytes(root), 1 << 62)


def _machine_bytes(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise OSError(f"{root}proc/meminfo has no MemAvailable; the kernel is older than 3.14")


def _cgroups_bytes(root: Path) -> Iterator[int]:
    """Yield what each limited cgroup from this process's own up to the topmost has left."""
    for hierarchy, limit, usage, cache in (
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        top = root / hierarchy
        own = top / _own_path(root, "" if limit == "memory.max" else "memory")
        for folder in (own, *own.parents):
            # In a container the path of /proc is the host's and need not exist below what is mounted.
            if folder.is_relative_to(top) and (folder / limit).is_file():
                limited = (folder / limit).read_text().strip()
                if limited != "max":
                    used = int((folder / usage).read_text()) - _statistic(folder / "memory.stat", cache)
                    yield max(0, int(limited) - used)


def _own_path(root: Path, controller: str) -> str:
    """Return this process's cgroup below the hierarchy of ``controller`` (none: the unified one)."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.strip("/")
    return ""


def _statistic(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
