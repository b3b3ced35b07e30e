"""Build the persistent step in block FP8 as it is, with each patch alone, and with all of them.

    python build_variants.py CUBINS [SHAPE]

From the root of a checkout. A cubin's name has the hash of its sources, so those that are there stay.
Prints a line a variant: its name and its cubin.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import click

from wisp_runtime.ops.cuda.device import build
from wisp_runtime.ops.cuda.device.catalogue import Catalogue

MESSAGES = "runtime/wisp_runtime/ops/cuda/persistent"
"""Folder of what a wait that timed out was for, which a patch adds to."""
HERE, ARCH, FORMAT = Path(__file__).parent, "sm_90a", "-DWISP_WEIGHT_FORMAT=fp8_block"


def variants() -> Iterator[tuple[str, list[Path]]]:
    """Yield names and patches."""
    patches = sorted(HERE.glob("0*.patch"))
    yield "main", []
    yield from ((patch.stem, [patch]) for patch in patches)
    yield "all", patches


def job_of(name: str, patches: list[Path], shape: str, cubins: Path, trees: Path) -> build.Job:
    """Return what builds a variant, from a tree of its own."""
    kernels = trees / name / "kernels"
    shutil.copytree("kernels", kernels)
    shutil.copytree(MESSAGES, trees / name / MESSAGES)
    for patch in patches:
        tool = ["patch", "-s", "-p1", "-i"] if shutil.which("patch") else ["git", "apply"]
        subprocess.run([*tool, str(patch.absolute())], cwd=trees / name, check=True)
    (job,) = (
        job
        for job in build.plan(Catalogue(kernels), [ARCH], cubins)
        if (job.source.op, job.source.model) == ("persistent_decode", shape) and FORMAT in job.source.defines
    )
    return replace(job, cubin=job.cubin.with_name(f"{name}-{job.cubin.name}"))


def main() -> None:
    """Build what is missing, all at once."""
    cubins, shape = Path(sys.argv[1]).absolute(), (sys.argv[2:] or ["qwen3-30b-a3b"])[0]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = {name: job_of(name, patches, shape, cubins, Path(folder)) for name, patches in variants()}
        nvcc = None if all(job.cubin.is_file() for job in jobs.values()) else build.find_nvcc()
        list(pool.map(lambda job: nvcc and build.compile_one(job, nvcc, _include(job)), jobs.values()))
    for name, job in jobs.items():
        click.echo(f"{name} {job.cubin}")


def _include(job: build.Job) -> Path:
    kernels = next(parent for parent in job.source.path.parents if parent.name == "kernels")
    return kernels / "include"


if __name__ == "__main__":
    main()
