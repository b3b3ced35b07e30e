"""Free memory and CPU time of the host, read from proc and cgroup trees of either version."""

import pytest

from wisp_plan.hardware.host import available_bytes, cpu_limit

MIB = 1 << 20
MEMINFO = "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"  # 4 GiB
V2, V1, V1_CPU = "sys/fs/cgroup", "sys/fs/cgroup/memory", "sys/fs/cgroup/cpu"


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


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        ("0::/", {}, None),
        ("0::/", {f"{V2}/cpu.max": "max 100000"}, None),
        ("0::/", {f"{V2}/cpu.max": "250000 100000"}, 2.5),
        ("0::/a/b", {f"{V2}/a/b/cpu.max": "800000 100000", f"{V2}/a/cpu.max": "50000 100000"}, 0.5),
        ("0::/kubepods/pod1/x", {f"{V2}/cpu.max": "200000 100000"}, 2.0),
        (
            "3:cpu,cpuacct:/x\n0::/",
            {f"{V1_CPU}/x/cpu.cfs_quota_us": "300000", f"{V1_CPU}/x/cpu.cfs_period_us": "100000"},
            3.0,
        ),
        (
            "3:cpu,cpuacct:/x\n0::/",
            {f"{V1_CPU}/x/cpu.cfs_quota_us": "-1", f"{V1_CPU}/x/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_the_tightest_quota_is_the_limit_of_cpus(tmp_path, own, files, cpus):
    for name, text in {"proc/self/cgroup": own, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cpu_limit(tmp_path) == cpus


def test_a_machine_without_cgroups_has_no_limit_of_cpus(tmp_path):
    assert cpu_limit(tmp_path) is None


def test_this_machine_has_some_memory():
    assert available_bytes() > 0
