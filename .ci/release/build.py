"""Build what a release consists of into ``dist/``: sdist, wheel, chart, locks, SBOMs and checksums.

    python .ci/release/build.py

Runs in the environment of ``.ci/requirements/release.txt`` (``make release`` makes it). The release workflow
builds the images, from the same Dockerfile as ``tests/cluster/images.sh``. Equal trees give equal wheels and
sdists: their times are those of the commit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import check

ROOT = check.ROOT
DIST = ROOT / "dist"
BIN = Path(sys.executable).parent
# Locks that a release carries, by the name of their set: the packages beside the wheel, those of the images.
LOCKS = ("run", "run-gpu", "operator", "runtime-cpu", "runtime-cuda")


def commit_time() -> str:
    """Return the time of the commit, in seconds since the epoch; outside of git the Dockerfile's own time."""
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or str(int((ROOT / "Dockerfile").stat().st_mtime))


def run(*command: str | Path) -> None:
    """Run a command in the root of the tree."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time()}
    subprocess.run([str(part) for part in command], cwd=ROOT, env=environment, check=True)


def helm() -> str:
    """Return Helm: of PATH, or that of the test node.

    Raises:
        SystemExit: there is none.
    """
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wisp"
    found = shutil.which("helm") or next(map(str, sorted(cached.glob("*/helm"), reverse=True)), None)
    if found is None:
        sys.exit("build.py needs helm on PATH, for the chart. tests/cluster/node/build.sh makes one.")
    return found


def build_packages() -> None:
    """Build the sdist and, from the sdist's tree, the wheel."""
    run(BIN / "python", "-m", "hatchling", "build", "-d", DIST, "-t", "sdist", "-t", "wheel")


def package_chart() -> None:
    """Package the chart, with the CRD that it links to."""
    run(helm(), "lint", "--strict", "--quiet", "charts/wisp")
    run(helm(), "package", "charts/wisp", "--destination", DIST)


def write_locks_and_sboms() -> None:
    """Copy the locks, and write a CycloneDX list of what each pins."""
    for name in LOCKS:
        source = ROOT / f".ci/requirements/{name}.txt"
        shutil.copy(source, DIST / f"requirements-{name}.txt")
        options = ("--pyproject", "pyproject.toml", "--mc-type", "application", "--output-reproducible")
        out = DIST / f"sbom-{name}.cdx.json"
        run(
            BIN / "python",
            "-W",
            "ignore",
            "-m",
            "cyclonedx_py",
            "requirements",
            source,
            *options,
            "--of",
            "JSON",
            "-o",
            out,
        )


def write_checksums() -> None:
    """Write SHA256SUMS over every file of the release."""
    files = sorted(path for path in DIST.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(lines))


def main() -> None:
    """Build everything, and list it."""
    check.main()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    build_packages()
    package_chart()
    write_locks_and_sboms()
    write_checksums()
    for path in sorted(DIST.iterdir()):
        print(f"dist/{path.name}  {path.stat().st_size / 1024:,.0f} KiB")


if __name__ == "__main__":
    main()
