"""Compile kernels: one cubin for each source and architecture, named by the hash of its inputs.

For developers and image builds; a process that serves compiles nothing.
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

from wisp_plan.distribution import install_command
from wisp_runtime.config import cuda_home
from wisp_runtime.errors import CompilationFailed, CompilerMissing
from wisp_runtime.ops.cuda.device.catalogue import Catalogue, nvcc_flags, require_known
from wisp_runtime.ops.cuda.device.manifest import Model, Source

_PYPI_PATH = Path("cu13", "bin", "nvcc")  # below site-packages/nvidia
_MAX_REMARKS = 4000
_COMPILATION_LIMIT_S = 1800


@dataclass(frozen=True, slots=True)
class Job:
    """One source to compile for one architecture.

    Attributes:
        source: the kernel file.
        arch: the architecture, e.g. ``sm_90a``.
        cubin: the file to write.
    """

    source: Source
    arch: str
    cubin: Path


@dataclass(frozen=True, slots=True)
class Built:
    """Result of a compile job.

    Attributes:
        job: the job.
        seconds: duration of nvcc; 0 if the cubin existed.
        remarks: output of nvcc.
    """

    job: Job
    seconds: float
    remarks: str


def plan(
    catalogue: Catalogue,
    architectures: Sequence[str],
    folder: Path,
    extra: Model | None = None,
    weight_format: str = "bf16",
) -> list[Job]:
    """Return a job for every source that a kernel set of these architectures has.

    Args:
        extra: sizes of a model that no manifest lists, to compile the templates for as well.
        weight_format: format of that model's layers.

    Raises:
        KernelsMissing: no hardware has such an architecture.
    """
    require_known(catalogue, architectures)
    known = catalogue.architectures()
    jobs: dict[str, Job] = {}
    for arch in architectures or known:
        added = catalogue.templates(known[arch].name, weight_format, extra) if extra else []
        for source in [*catalogue.sources(known[arch].name), *added]:
            cubin = folder / catalogue.cubin_name(source, arch)
            jobs.setdefault(cubin.name, Job(source, arch, cubin))
    return list(jobs.values())


def build(jobs: Sequence[Job], nvcc: Path, include: Path, at_once: int) -> Iterator[Built]:
    """Compile the missing cubins, ``at_once`` sources at a time; yield each as it completes.

    Raises:
        CompilationFailed: nvcc refused a source. Compilations in progress are finished first.
    """
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(compile_one, job, nvcc, include) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def compile_one(job: Job, nvcc: Path, include: Path) -> Built:
    """Compile one source unless its cubin exists; the cubin appears complete or not at all.

    Raises:
        CompilationFailed: nvcc refused it, or does not run here.
    """
    if job.cubin.is_file():
        return Built(job, 0.0, "")
    start_s = time.monotonic()
    job.cubin.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=job.cubin.parent, prefix=".building-") as folder:
        partial = Path(folder) / "partial.cubin"
        files = ["-I", str(include), "-o", str(partial), str(job.source.path)]
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
        if done.returncode or not partial.is_file():
            raise CompilationFailed(
                f"nvcc refused {job.source.path} for {job.arch}:\n{remarks[-_MAX_REMARKS:]}"
            )
        os.chmod(partial, 0o644)
        partial.replace(job.cubin)
    return Built(job, time.monotonic() - start_s, remarks)


def find_nvcc(given: Path | None = None) -> Path:
    """Return the compiler: the one ``given``, on the PATH, of CUDA_HOME, or of PyPI's wheels.

    Raises:
        CompilerMissing: there is no nvcc, or no C++ compiler for it.
    """
    home = cuda_home()
    on_path = shutil.which("nvcc")
    candidates = (
        [given] if given else [on_path and Path(on_path), home and home / "bin" / "nvcc", *_in_wheels()]
    )
    nvcc = next((path for path in candidates if path and path.is_file()), None)
    if nvcc is None:
        raise CompilerMissing(
            f"{given} is not there. Name nvcc of CUDA 13.0 or newer."
            if given
            else "there is no nvcc on the PATH, in CUDA_HOME, or beside this Python. "
            f"Run {install_command('kernels')}: 110 MB, or install CUDA's toolkit."
        )
    if not (shutil.which("g++") or shutil.which("clang++")):
        raise CompilerMissing(f"{nvcc} needs a C++ compiler on the PATH. Install g++.")
    return nvcc.resolve()


def _in_wheels() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    return [Path(folder) / _PYPI_PATH for folder in folders or ()]
