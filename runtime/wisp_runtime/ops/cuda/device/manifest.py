"""Read ``hardware.toml``, ``manifest.toml`` and ``models/<name>.toml`` of a folder under ``kernels/``.

Only texts are read: no GPU, no compiler. :mod:`.catalogue` chooses among what is read here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from wisp_runtime.errors import KernelsMissing

Capability = tuple[int, int]
Model = Mapping[str, int]
"""Sizes and switches of a model; templates see ``hidden`` as WISP_HIDDEN, and a missing one as 0."""

PORTABLE = "portable"
"""Hardware folder whose kernels serve every hardware that has none of its own."""

EVERY_MODEL = "common"
"""Model of kernels that serve every model."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A target of nvcc.

    Attributes:
        capabilities: compute capabilities that it serves.
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
    """A kernel file, as a manifest describes it.

    Attributes:
        op: the operation that it computes.
        hardware: folder under ``kernels/``.
        model: the one model that it is compiled for, or ``common``.
        formats: weight formats that it reads; empty if it reads no weight matrix.
        path: the ``.cu`` file.
        entries: names of its ``extern "C"`` kernels.
        needs: the shapes it assumes, in words.
        defines: macros that it is compiled with: shared constants and, of a template, the model's sizes.
        left_out: entries of a template that a model does not get whose sizes have the key.
    """

    op: str
    hardware: str
    model: str
    formats: tuple[str, ...]
    path: Path
    entries: tuple[str, ...]
    needs: str
    defines: tuple[str, ...] = ()
    left_out: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def entries_for(self, sizes: Model) -> tuple[str, ...]:
        """Return the entries that a template has for a model of ``sizes``."""
        absent = {entry for key, entries in self.left_out if key in sizes for entry in entries}
        return tuple(entry for entry in self.entries if entry not in absent)

    @property
    def name(self) -> str:
        """Name in messages, such as ``hopper/persistent/persistent_decode for qwen3-8b``."""
        own = "" if self.model == EVERY_MODEL else f" for {self.model}"
        return f"{self.hardware}/{self.path.parent.name}/{self.path.stem}{own}"

    def reads(self, weight_format: str) -> bool:
        """Return whether it serves a model of this weight format: it reads it, or reads no weights."""
        return not self.formats or weight_format in self.formats


@dataclass(frozen=True, slots=True)
class Absent:
    """An op without a kernel on some hardware, and why."""

    op: str
    why: str


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that templates are compiled for: ``models/<name>.toml``.

    Attributes:
        name: the model.
        formats: weight formats that it is compiled for.
        sizes: sizes and switches, which the templates take as macros.
        sources: kernels written for this model alone, in ``models/<name>/<subject>/``.
    """

    name: str
    formats: tuple[str, ...]
    sizes: Model
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Kernels of one hardware folder.

    Attributes:
        constants: numbers that CUDA and Python share; ``norm_threads`` is WISP_NORM_THREADS in CUDA.
        sources: kernels that serve every model.
        templates: sources that are compiled once for each model.
        models: the models that templates are compiled for.
        absent: ops that the hardware deliberately lacks, with the reason.
    """

    constants: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    templates: tuple[Source, ...] = ()
    models: tuple[ModelEntry, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)


def default_root() -> Path:
    """Return the kernel sources: of the installed package, or of the checkout.

    Raises:
        KernelsMissing: neither exists.
    """
    package = Path(__file__).parents[3]
    for root in (package / "kernels", package.parents[1] / "kernels"):
        if (root / "include").is_dir():
            return root
    raise KernelsMissing(f"no kernel sources beside {package}. Install wisp again, or work in a checkout.")


def constants(hardware: str = PORTABLE, root: Path | None = None) -> Mapping[str, int]:
    """Return the numbers that a hardware's kernels share with Python: the portable ones and its own."""
    root = root or default_root()
    return {**read_manifest(root / PORTABLE).constants, **read_manifest(root / hardware).constants}


def read_hardware(folder: Path) -> Hardware:
    """Read ``hardware.toml``."""
    facts = _read(folder / "hardware.toml")
    architectures = {
        arch: Architecture(tuple(map(_capability, row["capabilities"])), row["shared_bytes"])
        for arch, row in facts["architectures"].items()
    }
    return Hardware(folder.name, architectures, facts.get("sms", {}))


@cache
def read_manifest(folder: Path) -> Manifest:
    """Read ``manifest.toml`` and ``models/``; empty if there is no such file."""
    path = folder / "manifest.toml"
    if not path.is_file():
        return Manifest()
    facts = _read(path)
    return Manifest(
        facts.get("constants", {}),
        tuple(_sources(folder, facts.get("ops", {}), folder.name)),
        tuple(_sources(folder, facts.get("templates", {}), folder.name)),
        tuple(_model(file) for file in sorted(folder.glob("models/*.toml"))),
        facts.get("absent", {}),
    )


def _sources(
    folder: Path, subjects: Mapping[str, Any], hardware: str, model: str = EVERY_MODEL
) -> Iterator[Source]:
    """Yield a source for each op of each ``[ops.<subject>.<file>]``; ``ops`` names others than the file."""
    for subject, files in subjects.items():
        for stem, row in files.items():
            path, formats = folder / subject / f"{stem}.cu", tuple(row.get("formats", ()))
            left_out = tuple((key, tuple(entries)) for key, entries in row.get("left_out", {}).items())
            entries = tuple(row["entries"])
            for op in row.get("ops", (stem,)):
                yield Source(op, hardware, model, formats, path, entries, row["needs"], left_out=left_out)


def _model(path: Path) -> ModelEntry:
    facts = _read(path)
    own = _sources(path.with_suffix(""), facts.get("ops", {}), path.parents[1].name, path.stem)
    return ModelEntry(path.stem, tuple(facts["formats"]), facts["model"], tuple(own))


def _capability(text: str) -> Capability:
    major, minor = map(int, text.split("."))
    return major, minor


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())
