"""Choose the kernel source of each op for a GPU, a model and a weight format, from ``kernels/``.

The hardware's own sources come before ``portable``'s, and a model's own before those for every model. A
source that reads weights must read the format; any other serves every format. A template is a source that is
compiled once for each model of ``<hardware>/models/``, with the model's sizes as macros.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from wisp_runtime.errors import KernelsMissing
from wisp_runtime.ops.cuda.device.manifest import (
    EVERY_MODEL,
    PORTABLE,
    Absent,
    Capability,
    Hardware,
    Manifest,
    Model,
    Source,
    constants,
    default_root,
    read_hardware,
    read_manifest,
)

_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.M)
_DIGEST_LETTERS = 16


class Catalogue:
    """The kernel folders below ``root``."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()
        folders = sorted(path.parent for path in self.root.glob("*/hardware.toml"))
        self.hardware = {folder.name: read_hardware(folder) for folder in folders}

    def find(self, capability: Capability) -> tuple[Hardware, str]:
        """Return the hardware of a compute capability, and the architecture that is compiled for it.

        Raises:
            KernelsMissing: no folder serves it.
        """
        served_by = []
        for arch, hardware in self.architectures().items():
            for served in hardware.architectures[arch].capabilities:
                if served == capability:
                    return hardware, arch
                served_by.append(f"{served[0]}.{served[1]} ({hardware.name})")
        raise KernelsMissing(
            f"no kernels for compute capability {capability[0]}.{capability[1]}; there are for "
            f"{', '.join(served_by)}. Use one of those GPUs or --device cpu, or add a folder "
            "(see kernels/README.md)."
        )

    def architectures(self) -> dict[str, Hardware]:
        """Return every architecture that something is compiled for, with its hardware."""
        return {arch: hardware for hardware in self.hardware.values() for arch in hardware.architectures}

    def manifest(self, hardware: str) -> Manifest:
        """Return the kernels of one hardware folder; nothing if it has no manifest."""
        return read_manifest(self.root / hardware)

    def choose(
        self, op: str, hardware: str, weight_format: str = "bf16", model: str = EVERY_MODEL
    ) -> Source | Absent:
        """Return the source of an op, or why there is none.

        Args:
            op: the operation.
            hardware: folder, e.g. ``hopper``.
            weight_format: format of the weights that the op reads, if it reads any.
            model: shape whose own kernels come first.
        """
        candidates = list(self._candidates(op, hardware, model))
        for source in candidates:
            if source.reads(weight_format):
                return source
        if candidates:
            formats = ", ".join(sorted({name for source in candidates for name in source.formats}))
            return Absent(
                op,
                f"it reads no {weight_format} weights; available: {formats}. Use one of these "
                f"(spec.runtime.quantization), or write a kernel that reads {weight_format} (see "
                "kernels/README.md).",
            )
        reasons = (self.manifest(folder).absent.get(op) for folder in (hardware, PORTABLE))
        return Absent(op, next(filter(None, reasons), f"it is not written for {hardware}."))

    def resolve(
        self, hardware: str, weight_format: str = "bf16", model: str = EVERY_MODEL
    ) -> dict[str, Source | Absent]:
        """Choose a source for every op of any hardware, in alphabetical order.

        Arguments are those of :meth:`choose`.
        """
        ops = {op for name in self.hardware for op in self._ops(name)}
        ops |= {source.op for source in self._of_model(hardware, model)}
        return {op: self.choose(op, hardware, weight_format, model) for op in sorted(ops)}

    def sets(self, hardware: str) -> list[tuple[str, str]]:
        """Return every (model, weight format) for which ``hardware`` has kernels, portable ones included."""
        manifests = [self.manifest(folder) for folder in (hardware, PORTABLE)]
        formats = {name for manifest in manifests for source in manifest.sources for name in source.formats}
        pairs = {(EVERY_MODEL, name) for name in formats or {"bf16"}}
        pairs |= {(entry.name, name) for entry in manifests[0].models for name in entry.formats}
        return sorted(pairs)

    def sources(self, hardware: str) -> list[Source]:
        """Return every source that some kernel set of ``hardware`` has."""
        distinct: dict[tuple[Path, tuple[str, ...]], Source] = {}
        for model, weight_format in self.sets(hardware):
            for chosen in self.resolve(hardware, weight_format, model).values():
                if isinstance(chosen, Source):
                    distinct.setdefault((chosen.path, chosen.defines), chosen)
        return [distinct[key] for key in sorted(distinct)]

    def templates(self, hardware: str, weight_format: str, sizes: Model) -> list[Source]:
        """Return the templates of a hardware that read ``weight_format``, for a model of these sizes.

        Args:
            weight_format: format of the layers' matrices; ``int4+fp8/fp8`` names the head's and that of
                keys and values too, else bf16; ``bf16:mxfp4_fields`` that of experts, where it is another.
        """
        weights, _, cache = weight_format.partition("/")
        weights, _, head = weights.partition("+")
        layers, _, experts = weights.partition(":")
        macros = self.defines(hardware, sizes)
        macros += tuple(
            f"-DWISP_{place}_FORMAT={name}"
            for place, name in (("WEIGHT", layers), ("EXPERT", experts), ("HEAD", head), ("KV", cache))
            if name not in ("", "bf16")
        )
        readers = (
            source
            for source in self.manifest(hardware).templates
            if source.reads(layers) and source.reads(head or layers) and source.reads(experts or layers)
        )
        return [replace(source, defines=macros, entries=source.entries_for(sizes)) for source in readers]

    def defines(self, hardware: str, sizes: Model | None = None) -> tuple[str, ...]:
        """Return the macros of a hardware's sources: shared constants and, for templates, a model's sizes."""
        return (*defines_of(constants(hardware, self.root)), *defines_of(sizes or {}))

    def _candidates(self, op: str, hardware: str, model: str) -> Iterator[Source]:
        for folder in dict.fromkeys((hardware, PORTABLE)):
            for source in (*self._of_model(folder, model), *self.manifest(folder).sources):
                if source.op == op:
                    yield source if source.defines else replace(source, defines=self.defines(hardware))

    def _of_model(self, hardware: str, model: str) -> Iterator[Source]:
        """Yield the kernels that serve one model alone: its own, and the templates compiled for it."""
        for entry in self.manifest(hardware).models:
            if entry.name == model:
                yield from entry.sources
                for weight_format in entry.formats:
                    for source in self.templates(hardware, weight_format, entry.sizes):
                        yield replace(source, model=model, formats=(weight_format,))

    def _ops(self, hardware: str) -> Iterator[str]:
        manifest = self.manifest(hardware)
        yield from (source.op for source in manifest.sources)
        yield from manifest.absent

    def cubin_name(self, source: Source, arch: str) -> str:
        """Return the file name of a compiled source, which contains the hash of its inputs."""
        content = digest(source.path, self.root / "include", arch, source.defines)
        return f"{source.path.stem}-{arch}-{content}.cubin"


def require_known(catalogue: Catalogue, architectures: Iterable[str]) -> None:
    """Check that kernels are compiled for all of ``architectures``.

    Raises:
        KernelsMissing: names the first unknown one.
    """
    known = catalogue.architectures()
    for arch in architectures:
        if arch not in known:
            raise KernelsMissing(f"nothing is compiled for {arch}; there are {', '.join(known)}.")


def defines_of(numbers: Mapping[str, int]) -> tuple[str, ...]:
    """Return a macro for each number that is not 0: ``hidden`` is ``WISP_HIDDEN``."""
    return tuple(f"-DWISP_{key.upper()}={int(size)}" for key, size in sorted(numbers.items()) if size)


def nvcc_flags(arch: str) -> tuple[str, ...]:
    """Return the compiler's options for ``sm_90a`` and the like; part of every cubin's hash."""
    number = arch.removeprefix("sm_")
    return ("-cubin", "-gencode", f"arch=compute_{number},code=sm_{number}", "-O3", "-std=c++17")


def digest(source: Path, include: Path, arch: str, defines: Sequence[str] = ()) -> str:
    """Hash a source, all of our headers that it includes, and the compiler's options.

    Macros that occur nowhere in them do not count: a constant of one kernel renames no other kernel's cubin.
    """
    texts = [(path.name, path.read_bytes()) for path in _files(source, include)]
    used = [macro for macro in defines if any(_name(macro) in text for _, text in texts)]
    hashed = hashlib.sha256(" ".join((*nvcc_flags(arch), *used)).encode())
    for name, text in texts:
        hashed.update(f"\0{name}\0{len(text)}\0".encode() + text)
    return hashed.hexdigest()[:_DIGEST_LETTERS]


def _name(macro: str) -> bytes:
    return macro.removeprefix("-D").partition("=")[0].encode()


def _files(source: Path, include: Path) -> Iterator[Path]:
    """Yield ``source`` and, each once, the headers in quotes that it reaches; CUDA's own are not there."""
    seen, queue = {source}, [source]
    while queue:
        path = queue.pop(0)
        yield path
        for name in _INCLUDE.findall(path.read_bytes()):
            places = (folder / name.decode() for folder in (path.parent, include))
            header = next((place.resolve() for place in places if place.is_file()), None)
            if header and header not in seen:
                seen.add(header)
                queue.append(header)
