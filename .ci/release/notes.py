"""Texts of a release that come out of the tree and its images.

python .ci/release/notes.py text VERSION           its section of CHANGELOG.md, then how to install it
python .ci/release/notes.py values IMAGE@DIGEST…   chart values that pin the images by digest
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGE = re.compile(r"([^/]+)/(.+):([^:@]+)@(sha256:[0-9a-f]{64})")
INSTALL = """
---
Check the files, then install: docs/releases.md of the tag v{version}. Every file and image has a provenance
attestation (`gh attestation verify FILE --repo OWNER/REPOSITORY`), every lock and image an SBOM. The digests
of the images are in `images.yaml`, as values of the chart.
"""


def section(changelog: str, version: str) -> str:
    """Return what the changelog says of a version.

    Raises:
        SystemExit: nothing.
    """
    found = re.search(rf"(?ms)^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog)
    if found is None or not found[1].strip():
        sys.exit(f"CHANGELOG.md says nothing of {version}")
    return found[1].strip()


def values(images: list[str]) -> str:
    """Return values of the chart: registry, repositories and digests.

    Raises:
        SystemExit: an image is not named by registry, repository, tag and digest.
    """
    lines, registries = [], set()
    for image in images:
        match = IMAGE.fullmatch(image.strip())
        if match is None:
            sys.exit(f"not REGISTRY/REPOSITORY:TAG@sha256:…: {image}")
        registry, repository, tag, digest = match.groups()
        registries.add(registry)
        plane = "operator" if repository.endswith("operator") else "runtime"
        if tag.endswith("-cpu"):
            lines.append(f"  # without GPUs: runtime.digest {digest}")
        else:
            lines += [f"  {plane}:", f"    repository: {repository}", f"    digest: {digest}"]
    if len(registries) != 1:
        sys.exit(f"images of one registry were expected, not of {sorted(registries)}")
    return "\n".join(["images:", f"  registry: {registries.pop()}", *lines, ""])


def main() -> None:
    """Print one of the texts."""
    match sys.argv[1:]:
        case ["text", version]:
            print(section((ROOT / "CHANGELOG.md").read_text(), version) + INSTALL.format(version=version))
        case ["values", *images] if images:
            print(values(images), end="")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
