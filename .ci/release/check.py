"""Check a tree that is going to be released: versions agree, and everything that a build takes is pinned.

    python .ci/release/check.py                what stands between this tree and a release, as notes; exit 0
    python .ci/release/check.py --tag v0.1.0   the same as errors, and the tag must name the version; exit 1

The release workflow runs the second form before it builds anything.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import lock

ROOT = Path(__file__).resolve().parents[2]
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
COMMIT = re.compile(r"@[0-9a-f]{40}$")


def version_of(root: Path) -> str:
    """Return the version of pyproject.toml."""
    version: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return version


def wrong_versions(root: Path, tag: str | None) -> Iterator[str]:
    """Yield texts that name another version than pyproject.toml."""
    version = version_of(root)
    chart = (root / "charts/wisp/Chart.yaml").read_text()
    for key in ("version", "appVersion"):
        if f"\n{key}: {version}\n" not in chart:
            yield f"charts/wisp/Chart.yaml: {key} is not {version}, the version of pyproject.toml"
    changelog = (root / "CHANGELOG.md").read_text()
    if f"\n## [{version}] - " not in changelog:
        yield f"CHANGELOG.md has no section `## [{version}] - DATE`"
    if re.search(r"(?ms)^## \[Unreleased\]\n(?:(?!^## ).)*?^- ", changelog):
        yield "CHANGELOG.md: lines under [Unreleased] belong into the section of the version"
    if tag is not None and tag != f"v{version}":
        yield f"the tag is {tag}, the version is {version}: they must agree"


def unpinned_bases(root: Path) -> Iterator[str]:
    """Yield base images of the Dockerfile that are named by tag alone."""
    text = (root / "Dockerfile").read_text()
    images = re.findall(r"(?m)^ARG BASE=(\S+)", text) + re.findall(r"(?m)^FROM (?!\$)(\S+[:/@]\S+)", text)
    for image in images:
        if not DIGEST.search(image):
            yield f"Dockerfile: {image} has no digest; run .ci/release/pin_base.sh where it can be pulled"


def unpinned_actions(root: Path) -> Iterator[str]:
    """Yield Actions of the workflows that are named by a tag or a branch."""
    for path in sorted((root / ".github/workflows").glob("*.yaml")):
        for action in re.findall(r"(?m)^\s*(?:- )?uses: (\S+)", path.read_text()):
            if not COMMIT.search(action):
                yield f".github/workflows/{path.name}: {action} is not pinned by commit"


def problems(root: Path = ROOT, tag: str | None = None) -> list[str]:
    """Return everything that stands in the way of a release."""
    return [*wrong_versions(root, tag), *unpinned_bases(root), *unpinned_actions(root), *lock.check()]


def main() -> None:
    """Print notes, or with ``--tag`` errors."""
    match sys.argv[1:]:
        case []:
            for problem in problems():
                print(f"before a release: {problem}", file=sys.stderr)
        case ["--tag", tag]:
            if found := problems(tag=tag):
                sys.exit("\n".join([f"not releasable: {problem}" for problem in found]))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
