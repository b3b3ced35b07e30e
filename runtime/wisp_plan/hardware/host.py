"""Host memory and CPU time available to this process: the machine's, or the cgroup's if that is less.

The memory is read by a runtime before it loads weights and by ``wisp up`` before it starts one, so that both
agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int:
    """Return the minimum of the memory left in the machine and in each cgroup of this process.

    The page cache counts as available: the kernel drops it under pressure.

    Args:
        root: parent folder of ``proc`` and ``sys``; another than ``/`` in tests.
    """
    return min(_machine_bytes(root), *_cgroups_bytes(root), 1 << 62)


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Return the CPUs that the cgroups of this process may use together; None without a limit.

    Args:
        root: parent folder of ``proc`` and ``sys``; another than ``/`` in tests.
    """
    try:
        return min(_cgroups_cpus(root), default=None)
    except OSError:  # no Linux, or nothing mounted there
        return None


def _cgroups_cpus(root: Path) -> Iterator[float]:
    for hierarchy, controller, limit in (
        ("sys/fs/cgroup", "", "cpu.max"),
        ("sys/fs/cgroup/cpu", "cpu", "cpu.cfs_quota_us"),
    ):
        for folder in _own_folders(root, hierarchy, controller):
            if not (folder / limit).is_file():
                continue
            words = (folder / limit).read_text().split()
            if controller:
                words += (folder / "cpu.cfs_period_us").read_text().split()
            quota, period = words
            if quota.isdecimal():  # others are max and -1
                yield int(quota) / int(period)


def _machine_bytes(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise OSError(f"{root}proc/meminfo has no MemAvailable; the kernel is older than 3.14")


def _cgroups_bytes(root: Path) -> Iterator[int]:
    """Yield the memory left in each limited cgroup, from this process's own up to the root."""
    for hierarchy, limit, usage, cache in (
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for folder in _own_folders(root, hierarchy, "" if limit == "memory.max" else "memory"):
            if (folder / limit).is_file():
                limited = (folder / limit).read_text().strip()
                if limited != "max":
                    used = int((folder / usage).read_text()) - _statistic(folder / "memory.stat", cache)
                    yield max(0, int(limited) - used)


def _own_folders(root: Path, hierarchy: str, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroup and of those around it.

    In a container the path of /proc is the host's, and may not exist in the mounted hierarchy.
    """
    top = root / hierarchy
    own = top / _own_path(root, controller)
    return (folder for folder in (own, *own.parents) if folder.is_relative_to(top))


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
