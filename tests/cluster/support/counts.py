"""Counts of the cluster tests: printed at the end, and with RECORD=1 kept beside the benchmarks."""

import json
import os
import platform
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "tests/bench/records"
COLUMNS = ("sent", "streams", "answered", "retried", "refused", "error", "cut", "lost")
FAULT_COLUMNS = ("serves_s", "last_trouble_s", "status_wrong_s")
OUTCOMES = ("passed", "failed", "error", "skipped")
ROWS, BEGAN = [], time.monotonic()


@pytest.fixture(scope="session")
def record():
    """Keep one row: a name, and values for JSON."""

    def keep(name, **values):
        ROWS.append({"name": name, **values})
        return ROWS[-1]

    return keep


def table():
    """The rows for people: the loads as a table, the rest a line each."""
    loads = [row for row in ROWS if row["name"] == "load"]
    faults = [row for row in ROWS if row["name"] == "fault"]
    lines = [json.dumps(row) for row in ROWS if row["name"] not in ("load", "fault")]
    if loads:
        lines.append(_line("while", "/s", COLUMNS, ("p50 s", "most s")))
    for row in loads:
        seconds = (row["seconds"]["p50"], row["seconds"]["most"])
        counted = (row[name] for name in COLUMNS)
        lines.append(_line(row["row"].replace("_", " "), row["rate"], counted, seconds))
    if faults:
        lines.append(_line("fault", "/s", COLUMNS, FAULT_COLUMNS))
    for row in faults:
        rest = (row[name] for name in FAULT_COLUMNS)
        lines.append(_line(row["fault"], row["rate"], (row[name] for name in COLUMNS), rest))
    return "\n".join(lines)


def _line(name, rate, counts, rest):
    cells = "".join(f"{cell:>9}" for cell in counts) + "".join(f"{cell!s:>16}" for cell in rest)
    return f"{name[:70]:<70}{rate:>5}{cells}"


def write_if_asked(outcomes):
    """Write the record of this run; ``outcomes`` are its numbers of tests."""
    if os.environ.get("RECORD", "") in ("", "0"):
        return
    load = os.getloadavg()[0]
    about = {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{os.cpu_count()} CPUs, {processor()}, Linux {platform.release()}, load {load:.1f} after",
        "command": "make test-cluster RECORD=1",
        "seconds": round(time.monotonic() - BEGAN),
        "tests": outcomes,
    }
    faults = [row for row in ROWS if row["name"] == "fault"]
    for name, rows in (("faults", faults), ("cluster", [row for row in ROWS if row not in faults])):
        if rows:
            path = RECORDS / f"{name}.json"
            path.write_text(json.dumps({"name": name, **about, "rows": rows}, indent=1) + "\n")


def commit():
    """Commit of the tree."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def processor():
    """Name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown")
