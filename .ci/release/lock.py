"""Pin every dependency with its hashes: ``.ci/requirements/<set>.txt``, a file for each thing to install.

    python .ci/release/lock.py            write the files; pins that still satisfy pyproject.toml stay
    python .ci/release/lock.py --upgrade  take the newest release of everything
    python .ci/release/lock.py --check    exit 1 if a file disagrees with pyproject.toml; needs no network

Writing needs ``uv`` beside this interpreter or on PATH (``make lock`` installs the locked one). The files
name no index: pip takes what the machine is set up for, and the hashes decide.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".ci/requirements"
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
# The environments of [tool.uv], which uv repeats on every line.
EVERYWHERE = (
    " ; (platform_machine == 'aarch64' or platform_machine == 'x86_64')"
    " and platform_python_implementation == 'CPython' and sys_platform == 'linux'"
)
PIN = re.compile(r"([a-z0-9][a-z0-9-]*)==([^ ;\\]+)")


@dataclass(frozen=True)
class LockedSet:
    """Direct requirements of one thing that is installed.

    Args:
        purpose: first line of the file.
        extras: extras of pyproject.toml, beside its ``dependencies``.
        groups: dependency groups of pyproject.toml.
        without: packages of these extras that stay out.
    """

    purpose: str
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


NOT_IN_PODS = ("rich",)  # progress bars of a terminal
SETS = {
    "operator": LockedSet("the operator's image", ("operator", "otel")),
    "runtime-cpu": LockedSet("the runtime's image for the CPU", ("runtime", "otel"), without=NOT_IN_PODS),
    "runtime-cuda": LockedSet(
        "the runtime's image for GPUs", ("runtime", "cuda", "otel"), without=NOT_IN_PODS
    ),
    "kernels": LockedSet("the compiler of the kernels", ("kernels",), ("build",)),
    "build": LockedSet("sdist and wheel", (), ("build",)),
    "run": LockedSet("one machine without a GPU, and `make demo`", ("operator", "runtime")),
    "run-gpu": LockedSet("one machine with a GPU", ("operator", "runtime", "cuda", "kernels")),
    "dev": LockedSet("`make test` and `make check`", ("operator", "runtime", "otel", "dev"), ("build",)),
    "clients": LockedSet("`make test-clients`", (), ("clients",)),
    "page": LockedSet("`make test-page`", (), ("page",)),
    "release": LockedSet("`make lock` and `make release`", (), ("build", "release")),
}
OWN_VERSIONS = {"clients", "page", "release"}  # each installed alone, so nothing else has to agree with it


def requirements_of(locked: LockedSet, project: dict[str, object] | None = None) -> list[str]:
    """Return the direct requirements of a set, sorted."""
    document = project or tomllib.loads((ROOT / "pyproject.toml").read_text())
    table, groups = document["project"], document["dependency-groups"]
    lines = list(table["dependencies"]) if locked.extras else []  # type: ignore[index]
    for extra in locked.extras:
        lines += table["optional-dependencies"][extra]  # type: ignore[index]
    for group in locked.groups:
        lines += groups[group]  # type: ignore[index]
    kept = {line for line in lines if canonicalize_name(Requirement(line).name) not in locked.without}
    return sorted(kept)


def fingerprint(lines: list[str]) -> str:
    """Return a digest of direct requirements, by which a stale file shows."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def pins_of(text: str) -> dict[str, str]:
    """Return the version of each package that a file pins."""
    return dict(match.groups() for line in text.splitlines() if (match := PIN.match(line)))


def problems_of(name: str, text: str) -> list[str]:
    """Return where a file disagrees with pyproject.toml, or is no lock."""
    lines, pins = requirements_of(SETS[name]), pins_of(text)
    problems = []
    if f"inputs {fingerprint(lines)}" not in text:
        problems.append("it was written for other requirements than pyproject.toml has")
    for line in lines:
        wanted = Requirement(line)
        version = pins.get(canonicalize_name(wanted.name))
        if version is None:
            problems.append(f"{line} is not pinned")
        elif not wanted.specifier.contains(version, prereleases=True):
            problems.append(f"{line} does not allow {version}")
    blocks = re.split(r"\n(?=\S)", re.sub(r"(?m)^#.*\n", "", text).strip())
    unpinned = [block for block in blocks if not (PIN.match(block) and HASH.search(block))]
    problems += [f"no pin with a hash: {block.partition(chr(10))[0]}" for block in unpinned]
    if "://" in text or "--index" in text or "--find-links" in text:
        problems.append("it names an index or an address")
    return problems


def check() -> list[str]:
    """Return every problem of every file; two files that pin a package differently are one, too."""
    problems, versions = [], dict[str, dict[str, str]]()
    for name in SETS:
        path = FOLDER / f"{name}.txt"
        text = path.read_text() if path.exists() else ""
        problems += [f".ci/requirements/{name}.txt: {problem}" for problem in problems_of(name, text)]
        if name not in OWN_VERSIONS:
            for package, version in pins_of(text).items():
                versions.setdefault(package, {})[version] = name
    differing = {package: found for package, found in versions.items() if len(found) > 1}
    return problems + [f"{package} has several versions: {found}" for package, found in differing.items()]


def resolve(lines: list[str], out: Path, constraints: Path | None, *options: str) -> str:
    """Let uv pin ``lines`` and everything that they need, for Linux and every Python that we support."""
    here = Path(sys.executable).with_name("uv")
    command = [str(here) if here.exists() else "uv", "pip", "compile", "-", "--quiet", "--universal"]
    command += ["--python-version", "3.11", "--fork-strategy", "fewest", "--no-annotate", "--no-header"]
    command += [
        "--output-file",
        str(out),
        *options,
        *(["--constraints", str(constraints)] if constraints else []),
    ]
    environment = {**os.environ, "UV_NO_PROGRESS": "1", "UV_SYSTEM_CERTS": "1"}
    subprocess.run(command, input="\n".join(lines), text=True, check=True, cwd=ROOT, env=environment)
    return out.read_text()


def write(name: str, pins: str) -> None:
    """Write the file of a set."""
    locked = SETS[name]
    lines = requirements_of(locked)
    head = (
        f"# Locked for {locked.purpose}. Written by `make lock`, do not edit; inputs {fingerprint(lines)}.\n"
        "# Install with: pip install --require-hashes -r THIS_FILE\n"
    )
    (FOLDER / f"{name}.txt").write_text(head + pins.replace(EVERYWHERE, ""))
    print(f".ci/requirements/{name}.txt: {len(pins_of(pins))} packages", file=sys.stderr)


def write_all(*options: str) -> None:
    """Resolve everything that has to agree at once, and each set within the outcome."""
    FOLDER.mkdir(exist_ok=True)
    old = {name: FOLDER / f"{name}.txt" for name in SETS}
    pinned = {name: pins_of(path.read_text()) if path.exists() else {} for name, path in old.items()}
    with tempfile.TemporaryDirectory() as folder:
        for group in (set(SETS) - OWN_VERSIONS, *({name} for name in sorted(OWN_VERSIONS))):
            together = Path(folder) / "together.txt"
            known = {package: version for name in group for package, version in pinned[name].items()}
            together.write_text("".join(f"{package}=={version}\n" for package, version in known.items()))
            lines = sorted({line for name in group for line in requirements_of(SETS[name])})
            resolve(lines, together, None, *options)
            for name in sorted(group):
                out = Path(folder) / f"{name}.txt"
                write(name, resolve(requirements_of(SETS[name]), out, together, "--generate-hashes"))


def main() -> None:
    """Write or check."""
    if sys.argv[1:] not in ([], ["--upgrade"], ["--check"]):
        sys.exit(__doc__)
    if sys.argv[1:] != ["--check"]:
        write_all(*sys.argv[1:])
    problems = check()
    if problems:
        sys.exit("\n".join([*problems, "Run `make lock`, look at the difference, and commit it."]))


if __name__ == "__main__":
    main()
