"""Run the tests of our connections against every uvicorn that we may allow, and record the outcome.

    python .ci/release/uvicorn_versions.py [FIRST]    from FIRST on (default: the requirement's lower bound)

Our servers derive from ``HttpToolsProtocol``, which uvicorn may change in any release. Runs in the
development environment; every release is installed into a folder of its own in front of it. Exits 1 if one
that the requirement allows fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests/bench/records/uvicorn.json"
TESTS = (
    "tests/http/test_uvicorn_contract.py",
    "tests/gateway/inbound/test_hostile_bytes.py",
    "tests/gateway/inbound/test_server.py",
    "tests/gateway/inbound/test_upgrade.py",
    "tests/runtime/server/test_hostile_bytes.py",
)
ABOUT_RECORD = "no_release_is_allowed"  # tests of the record, not of a release


def requirement() -> Requirement:
    """Return the requirement of pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return next(Requirement(line) for line in extras["operator"] if line.startswith("uvicorn"))


def releases(first: Version) -> list[Version]:
    """Return the releases of uvicorn from ``first`` on, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "uvicorn"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Available versions: (.*)", listing)
    versions = sorted(Version(text) for text in found[1].split(", ")) if found else []
    return [version for version in versions if version >= first]


def trial(version: Version) -> dict[str, object]:
    """Return whether the tests pass with this release, and what failed."""
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*install, f"uvicorn=={version}"], check=True)
        path = os.pathsep.join([folder, str(ROOT / "operator"), str(ROOT / "runtime")])
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            f"not ({ABOUT_RECORD})",
        ]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            [*command, *TESTS], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    failed = re.findall(r"(?m)^(?:FAILED|ERROR) (\S+)", done.stdout)
    print(f"uvicorn {version}: {done.stdout.strip().splitlines()[-1]}", file=sys.stderr)
    return {"version": str(version), "works": done.returncode == 0, "failed": failed}


def main() -> None:
    """Try every release, write the record."""
    wanted = requirement()
    bound = next(bound.version for bound in wanted.specifier if bound.operator == ">=")
    rows = [trial(version) for version in releases(Version(sys.argv[1] if sys.argv[1:] else bound))]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    record = {
        "name": "uvicorn",
        "command": "python .ci/release/uvicorn_versions.py",
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "python": sys.version.split()[0],
        "tests": list(TESTS),
        "rows": rows,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    wrong = [row["version"] for row in rows if not row["works"] and str(row["version"]) in wanted.specifier]
    sys.exit(f"allowed by {wanted} and failing: {wrong}" if wrong else 0)


if __name__ == "__main__":
    main()
