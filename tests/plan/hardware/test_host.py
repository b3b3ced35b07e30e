"""Free memory of the host, read from proc and cgroup trees of either version."""

import pytest

from wisp_plan.hardware.host import available_bytes

MIB = 1 << 20
MEMINFO = "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"  # 4 GiB
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def group(folder, limit, used, cached):
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": str(used * MIB),
        f"{folder}/memory.stat": f"anon 1\ninactive_file {cached * MIB}\n",
    }


@pytest.mark.parametrize(
    ("own", "files", "expect_mib"),
    [
        ("0::/", {}, 4096),
        ("0::/", group(V2, "max", 100, 0), 4096),
        ("0::/", group(V2, str(1024 * MIB), 100, 0), 924),
        ("0::/", group(V2, str(1024 * MIB), 900, 600), 724),  # the page cache can be dropped
        ("0::/", group(V2, str(1024 * MIB), 1100, 0), 0),
        ("0::/", group(V2, str(9999 * MIB), 0, 0), 4096),
        # A limit of any group around it binds.
        ("0::/a/b", group(f"{V2}/a/b", "max", 5, 0) | group(f"{V2}/a", str(512 * MIB), 12, 0), 500),
        # In a container the path is the host's, and only the container's own group is mounted.
        ("0::/kubepods/pod1/x", group(V2, str(256 * MIB), 6, 0), 250),
        (
            "4:memory:/docker/x\n0::/",
            {
                f"{V1}/docker/x/memory.limit_in_bytes": str(300 * MIB),
                f"{V1}/docker/x/memory.usage_in_bytes": str(100 * MIB),
                f"{V1}/docker/x/memory.stat": f"total_inactive_file {50 * MIB}\n",
            },
            250,
        ),
    ],
)
def test_the_tightest_limit_is_the_available_memory(tmp_path, own, files, expect_mib):
    for name, text in {"proc/meminfo": MEMINFO, "proc/self/cgroup": own, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert available_bytes(tmp_path) == expect_mib * MIB


def test_this_machine_has_some_memory():
    assert available_bytes() > 0
