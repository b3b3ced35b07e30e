"""Which kernel source serves which op on which GPU: the folders under ``kernels/``, read and resolved.

A leaf ``<hardware>/<model>/<quant>`` shadows ``<hardware>/common/<quant>``, which shadows
``portable/common/<quant>``. A template is a source of ``<hardware>/common/<quant>`` that is compiled once
for each model that a manifest describes (``[model]``), with the model's sizes as macros. Only texts are read
here: no GPU, no compiler.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from wisp_runtime.errors import KernelsMissing

Capability = tuple[int, int]
Model = Mapping[str, int]
"""A model as templates see it: what they call WISP_HIDDEN is ``hidden``; what is not there is 0."""

PORTABLE, EVERY_MODEL = "portable", "common"
_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.M)
_DIGEST_LETTERS = 16


@dataclass(frozen=True, slots=True)
class Architecture:
    """What nvcc compiles for.

    Attributes:
        capabilities: the compute capabilities that it serves.
        shared_bytes: shared memory that a block may ask for.
    """

    capabilities: tuple[Capability, ...]
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Hardware:
    """A generation of GPUs that kernels are compiled for.

    Attributes:
        name: its folder under ``kernels/``.
        architectures: by nvcc's names, such as ``sm_90a``.
        sms: multiprocessors of each card, by the plan's names.
    """

    name: str
    architectures: Mapping[str, Architecture]
    sms: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel file, as its leaf's manifest describes it.

    Attributes:
        op: what it computes; its file is named so.
        leaf: ``<hardware>/<model>/<quant>``.
        path: the ``.cu`` file.
        entries: names of its ``extern "C"`` kernels.
        needs: the shapes it assumes, in words.
        defines: macros that it is compiled with: of a template, the model's sizes.
    """

    op: str
    leaf: str
    path: Path
    entries: tuple[str, ...]
    needs: str
    defines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """An op without a kernel on some hardware, and why."""

    op: str
    leaf: str
    why: str


class Catalogue:
    """The kernel folders below ``root``."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()
        folders = sorted(path.parent for path in self.root.glob("*/hardware.toml"))
        self.hardware = {folder.name: _hardware(folder) for folder in folders}

    def find(self, capability: Capability) -> tuple[Hardware, str]:
        """Return the hardware of a compute capability, and the architecture that is compiled for it.

        Raises:
            KernelsMissing: no folder serves it.
        """
        known = []
        for arch, hardware in self.architectures().items():
            for served in hardware.architectures[arch].capabilities:
                if served == capability:
                    return hardware, arch
                known.append(f"{served[0]}.{served[1]} ({hardware.name})")
        raise KernelsMissing(
            f"no kernels for compute capability {capability[0]}.{capability[1]}; there are for "
            f"{', '.join(known)}. Use one of those GPUs or --device cpu, or add a folder "
            "(see kernels/README.md)."
        )

    def architectures(self) -> dict[str, Hardware]:
        """Return every architecture that something is compiled for, with its hardware."""
        return {arch: hardware for hardware in self.hardware.values() for arch in hardware.architectures}

    def resolve(
        self, hardware: str, quant: str = "bf16", model: str = EVERY_MODEL
    ) -> dict[str, Source | Absent]:
        """Choose a source for every op that any leaf of this ``quant`` knows, in alphabetical order.

        Args:
            hardware: folder, e.g. ``hopper``.
            quant: how weights are held, e.g. ``bf16``.
            model: family whose own kernels come first.
        """
        own = [f"{hardware}/{model}/{quant}", f"{hardware}/{EVERY_MODEL}/{quant}"]
        chosen: dict[str, Source | Absent] = {}
        for leaf in dict.fromkeys([*own, f"{PORTABLE}/{EVERY_MODEL}/{quant}"]):
            for op, found in self.manifest(leaf).items():
                if op not in chosen or (isinstance(chosen[op], Absent) and isinstance(found, Source)):
                    chosen[op] = found
        for leaf in self.leaves():
            if leaf.endswith(f"/{quant}"):
                for op, found in self.manifest(leaf).items():
                    if not (isinstance(found, Source) and found.defines):  # no other model misses a template
                        chosen.setdefault(op, Absent(op, own[-1], f"nobody has written it for {hardware}."))
        return dict(sorted(chosen.items()))

    def sets(self, hardware: str) -> list[tuple[str, str]]:
        """Return every (model, quant) for which ``hardware`` can have kernels of its own or portable ones."""
        found = set()
        for leaf in self.leaves():
            folder, model, quant = leaf.split("/")
            if folder in (hardware, PORTABLE):
                found.add((model, quant))
        return sorted(found)

    def sources(self, hardware: str) -> list[Source]:
        """Return every source that some kernel set of ``hardware`` has."""
        found: dict[Any, Source] = {}
        for model, quant in self.sets(hardware):
            for chosen in self.resolve(hardware, quant, model).values():
                if isinstance(chosen, Source):
                    found.setdefault((chosen.path, chosen.defines), chosen)
        return [found[key] for key in sorted(found)]

    def leaves(self) -> list[str]:
        """Return every leaf: ``<hardware>/<model>/<quant>``."""
        manifests = self.root.glob("*/*/*/manifest.toml")
        return sorted(path.parent.relative_to(self.root).as_posix() for path in manifests)

    def manifest(self, leaf: str) -> dict[str, Source | Absent]:
        """Return what a leaf has and what it deliberately lacks, by op; nothing if there is no such leaf."""
        return _manifest(self.root, leaf)

    def templates(self, hardware: str, quant: str, model: Model) -> list[Source]:
        """Return the templates of a hardware, for one model."""
        leaf = f"{hardware}/{EVERY_MODEL}/{quant}"
        return list(_templates(self.root, leaf, leaf, model).values())

    def cubin_name(self, source: Source, arch: str) -> str:
        """Return the file name of a compiled source: it holds the hash of all that goes into it."""
        made_of = digest(source.path, self.root / "include", arch, source.defines)
        return f"{source.path.stem}-{arch}-{made_of}.cubin"


def require_known(catalogue: Catalogue, architectures: Iterable[str]) -> None:
    """Check that kernels are compiled for all of ``architectures``.

    Raises:
        KernelsMissing: names the first for which they are not.
    """
    known = catalogue.architectures()
    for arch in architectures:
        if arch not in known:
            raise KernelsMissing(f"nothing is compiled for {arch}; there are {', '.join(known)}.")


def defines_of(model: Model) -> tuple[str, ...]:
    """Return the macros that templates are compiled with for ``model``."""
    return tuple(f"-DWISP_{key.upper()}={int(size)}" for key, size in sorted(model.items()) if size)


def default_root() -> Path:
    """Return the kernel sources: of the installed package, or of the checkout.

    Raises:
        KernelsMissing: neither is there.
    """
    package = Path(__file__).parents[3]
    for root in (package / "kernels", package.parents[1] / "kernels"):
        if (root / "include").is_dir():
            return root
    raise KernelsMissing(f"no kernel sources beside {package}. Install wisp again, or work in a checkout.")


def nvcc_flags(arch: str) -> tuple[str, ...]:
    """Return the compiler's options for ``sm_90a`` and the like; part of every cubin's hash."""
    number = arch.removeprefix("sm_")
    return ("-cubin", "-gencode", f"arch=compute_{number},code=sm_{number}", "-O3", "-std=c++17")


def digest(source: Path, include: Path, arch: str, defines: Sequence[str] = ()) -> str:
    """Hash a source, all of our headers that it includes, and the compiler's options."""
    told = hashlib.sha256(" ".join((*nvcc_flags(arch), *defines)).encode())
    for path in _files(source, include):
        text = path.read_bytes()
        told.update(f"\0{path.name}\0{len(text)}\0".encode() + text)
    return told.hexdigest()[:_DIGEST_LETTERS]


def _files(source: Path, include: Path) -> Iterator[Path]:
    """Yield ``source`` and, each once, the headers in quotes that it reaches; CUDA's own are not there."""
    seen, queue = {source}, [source]
    while queue:
        path = queue.pop(0)
        yield path
        for name in _INCLUDE.findall(path.read_bytes()):
            places = (folder / name.decode() for folder in (path.parent, include))
            found = next((place.resolve() for place in places if place.is_file()), None)
            if found and found not in seen:
                seen.add(found)
                queue.append(found)


def _hardware(folder: Path) -> Hardware:
    facts = _read(folder / "hardware.toml")
    architectures = {
        arch: Architecture(tuple(map(_capability, told["capabilities"])), told["shared_bytes"])
        for arch, told in facts["architectures"].items()
    }
    return Hardware(folder.name, architectures, facts.get("sms", {}))


def _capability(text: str) -> Capability:
    major, minor = map(int, text.split("."))
    return major, minor


@cache
def _manifest(root: Path, leaf: str) -> dict[str, Source | Absent]:
    path = root / leaf / "manifest.toml"
    if not path.is_file():
        return {}
    facts = _read(path)
    sources = {
        op: Source(op, leaf, path.parent / f"{op}.cu", tuple(told["entries"]), told["needs"])
        for op, told in facts.get("ops", {}).items()
    }
    if "model" in facts:
        hardware, _, quant = leaf.split("/")
        sources |= _templates(root, f"{hardware}/{EVERY_MODEL}/{quant}", leaf, facts["model"])
    return {**sources, **{op: Absent(op, leaf, why) for op, why in facts.get("absent", {}).items()}}


def _templates(root: Path, home: str, leaf: str, model: Model) -> dict[str, Source]:
    """Return the templates of leaf ``home``, for ``model``, which ``leaf`` describes."""
    path = root / home / "manifest.toml"
    found = _read(path).get("templates", {}) if path.is_file() else {}
    defines = defines_of(model)
    return {
        op: Source(op, leaf, path.parent / f"{op}.cu", tuple(told["entries"]), told["needs"], defines)
        for op, told in found.items()
    }


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())
