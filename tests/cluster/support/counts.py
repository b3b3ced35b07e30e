"""Counts of the cluster tests: printed at the end, and with RECORD=1 kept beside the benchmarks."""

import json
import os
import platform
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RECORD = ROOT / "tests/bench/records/cluster.json"
COLUMNS = ("sent", "streams", "answered", "retried", "refused", "lost")
ROWS = []


@pytest.fixture(scope="session")
def record():
    """Keep one row: a name, and values for JSON."""

    def keep(name, **values):
        ROWS.append({"name": name, **values})

    return keep


def table():
    """The rows for people: the loads as a table, the rest a line each."""
    loads = [row for row in ROWS if row["name"] == "load"]
    lines = [json.dumps(row) for row in ROWS if row["name"] != "load"]
    if loads:
        lines.append(
            f"{'while':<46}{'/s':>5}" + "".join(f"{name:>9}" for name in COLUMNS) + "    p50 s   most s"
        )
    for row in loads:
        counted = "".join(f"{row[name]:>9}" for name in COLUMNS)
        seconds = f"{row['seconds']['p50']:>9}{row['seconds']['most']:>9}"
        lines.append(f"{row['row'].replace('_', ' '):<46}{row['rate']:>5}{counted}{seconds}")
    return "\n".join(lines)


def write_if_asked(**outcomes):
    """Write the record of this run; ``outcomes`` are its numbers of tests."""
    if os.environ.get("RECORD", "") in ("", "0"):
        return
    load = os.getloadavg()[0]
    found = {
        "name": "cluster",
        "commit": commit(),
        "machine": f"{os.cpu_count()} CPUs, {processor()}, Linux {platform.release()}, load {load:.1f} after",
        "command": "make test-cluster RECORD=1",
        "tests": outcomes,
        "rows": ROWS,
    }
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


def commit():
    """Commit of the tree."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def processor():
    """Name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown")
