"""Measure what each program imports before it does anything: time, memory, modules, packages.

    python .ci/release/imports.py            table on stdout
    python .ci/release/imports.py --record   tests/bench/records/imports.json besides

Bytecode is written by a first run; times are of the CPU, medians of ``RUNS`` processes. They depend on the
machine, modules do not: ``tests/distribution/test_imports.py`` bounds those.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests/bench/records/imports.json"
RUNS = 7
PROGRAMS = {
    "operator": ("wisp_operator.main", "wisp_operator.cluster.replica"),
    "gateway": ("wisp_gateway.main", "wisp_gateway.gateway"),
    "runtime": (
        "wisp_runtime.server.api.app",
        "wisp_runtime.server.http.server",
        "wisp_runtime.engine.startup",
    ),
    "runtime: server": (
        "wisp_runtime.cli.main",
        "wisp_runtime.server.process",
        "wisp_runtime.server.http.server",
        "wisp_runtime.server.api.app",
    ),
    "runtime: engine": ("wisp_runtime.engine.startup",),
    "wisp": ("wisp_operator.cli.main",),
}
PROBE = """
import time; began = time.process_time()
import {modules}
took = time.process_time() - began
import json, resource, sys
names = sorted(sys.modules)
print(json.dumps([took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, names]))
"""


def loaded(program: str) -> tuple[float, float, list[str]]:
    """Return seconds, MiB and the names of modules of one process that imports a program."""
    code = PROBE.format(modules=", ".join(PROGRAMS[program]))
    path = os.pathsep.join([str(ROOT / "operator"), str(ROOT / "runtime")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    seconds, mebibytes, names = json.loads(done.stdout)
    return seconds, mebibytes, names


def packages(names: list[str]) -> set[str]:
    """Return the packages of others among modules."""
    tops = {name.partition(".")[0] for name in names}
    return {name for name in tops - sys.stdlib_module_names if not re.match(r"wisp_|_|cython_runtime", name)}


def row(program: str) -> dict[str, object]:
    """Return what a program imports."""
    runs = [loaded(program) for _ in range(RUNS + 1)][1:]
    names = runs[0][2]
    return {
        "program": program,
        "import_cpu_ms": round(1000 * statistics.median(seconds for seconds, _, _ in runs)),
        "rss_mib": round(statistics.median(mebibytes for _, mebibytes, _ in runs)),
        "modules": len(names),
        "packages": len(packages(names)),
    }


def main() -> None:
    """Print the table, and write the record if asked."""
    rows = [row(program) for program in PROGRAMS]
    for line in rows:
        time_and_memory = f"{line['import_cpu_ms']:>5} ms {line['rss_mib']:>4} MiB"
        print(f"{line['program']:16} {time_and_memory} {line['modules']:>5} modules")
    if "--record" in sys.argv:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
        record = {
            "name": "imports",
            "commit": commit.stdout.strip(),
            "command": "python .ci/release/imports.py --record",
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
            "python": platform.python_version(),
            "rows": rows,
        }
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
