"""Compile kernels: one cubin a source and architecture, named by the hash of all that goes into it.

For people and image builds; a process that serves never comes here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from wisp_runtime.config import cuda_home
from wisp_runtime.errors import CompilationFailed, CompilerMissing
from wisp_runtime.ops.cuda.device.catalogue import Catalogue, nvcc_flags, require_known
from wisp_runtime.ops.cuda.device.manifest import Model, Source

_PYPI_PLACE = Path("cu13", "bin", "nvcc")  # below site-packages/nvidia
_LONGEST_COMPLAINT = 4000
_COMPILATION_LIMIT_S = 1800


@dataclass(frozen=True, slots=True)
class Job:
    """One source to compile for one architecture.

    Attributes:
        source: what.
        arch: e.g. ``sm_90a``.
        cubin: where it goes.
    """

    source: Source
    arch: str
    cubin: Path


@dataclass(frozen=True, slots=True)
class Built:
    """What became of a job.

    Attributes:
        job: the job.
        seconds: that nvcc took; 0 if the cubin was there.
        remarks: what nvcc printed.
    """

    job: Job
    seconds: float
    remarks: str


def plan(
    catalogue: Catalogue, architectures: Sequence[str], folder: Path, extra: Model | None = None
) -> list[Job]:
    """Return a job for every source that a kernel set of these architectures has.

    Args:
        extra: a model that no manifest describes, to compile the templates for as well.

    Raises:
        KernelsMissing: no hardware has such an architecture.
    """
    require_known(catalogue, architectures)
    known = catalogue.architectures()
    jobs: dict[str, Job] = {}
    for arch in architectures or known:
        added = catalogue.templates(known[arch].name, "bf16", extra) if extra else []
        for source in [*catalogue.sources(known[arch].name), *added]:
            cubin = folder / catalogue.cubin_name(source, arch)
            jobs.setdefault(cubin.name, Job(source, arch, cubin))
    return list(jobs.values())


def build(jobs: Sequence[Job], nvcc: Path, include: Path, at_once: int) -> Iterator[Built]:
    """Compile what is not there yet, ``at_once`` sources at a time; yield each as it is done.

    Raises:
        CompilationFailed: nvcc refused a source. Those that were begun are finished first.
    """
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(compile_one, job, nvcc, include) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def compile_one(job: Job, nvcc: Path, include: Path) -> Built:
    """Compile one source unless its cubin is there; nobody ever sees half a cubin.

    Raises:
        CompilationFailed: nvcc refused it, or is not one that runs here.
    """
    if job.cubin.is_file():
        return Built(job, 0.0, "")
    began_s = time.monotonic()
    job.cubin.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=job.cubin.parent, prefix=".building-") as folder:
        half = Path(folder) / "half.cubin"
        files = ["-I", str(include), "-o", str(half), str(job.source.path)]
        try:
            done = subprocess.run(
                [str(nvcc), *nvcc_flags(job.arch), *job.source.defines, *files],
                capture_output=True,
                text=True,
                timeout=_COMPILATION_LIMIT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilationFailed(f"{nvcc} did not compile {job.source.path}: {error}.") from error
        remarks = (done.stdout + done.stderr).strip()
        if done.returncode or not half.is_file():
            raise CompilationFailed(
                f"nvcc refused {job.source.path} for {job.arch}:\n{remarks[-_LONGEST_COMPLAINT:]}"
            )
        os.chmod(half, 0o644)
        half.replace(job.cubin)
    return Built(job, time.monotonic() - began_s, remarks)


def find_nvcc(given: Path | None = None) -> Path:
    """Return the compiler: the one ``given``, on the PATH, of CUDA_HOME, or of PyPI's wheels.

    Raises:
        CompilerMissing: there is none, or none that can find a C++ compiler.
    """
    home = cuda_home()
    on_path = shutil.which("nvcc")
    places = [given] if given else [on_path and Path(on_path), home and home / "bin" / "nvcc", *_in_wheels()]
    found = next((place for place in places if place and place.is_file()), None)
    if found is None:
        raise CompilerMissing(
            f"{given} is not there. Name nvcc of CUDA 13.0 or newer."
            if given
            else "there is no nvcc on the PATH, in CUDA_HOME, or beside this Python. "
            "Run pip install -e '.[kernels]' in a clone (110 MB), or install CUDA's toolkit."
        )
    if not (shutil.which("g++") or shutil.which("clang++")):
        raise CompilerMissing(f"{found} needs a C++ compiler on the PATH. Install g++.")
    return found.resolve()


def _in_wheels() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    return [Path(folder) / _PYPI_PLACE for folder in folders or ()]
