"""The GEMMs of ``portable/`` on a GPU that has some of its own, for tests and measurements."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from wisp_runtime.config import kernels_dir
from wisp_runtime.ops.cuda.device import build
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import KernelSet
from wisp_runtime.ops.cuda.device.manifest import PORTABLE


class PortableGemms:
    """A kernel set whose ops ``linear…`` are those of ``portable/``; all others are the GPU's."""

    def __init__(self, own: KernelSet, portable: KernelSet) -> None:
        self._own, self._portable = own, portable

    def __getattr__(self, name):
        return getattr(self._own, name)

    def _of(self, op):
        return self._portable if op.startswith("linear") else self._own

    def get(self, op, *more, **named):
        return self._of(op).get(op, *more, **named)

    def has(self, op, *more, **named):
        return self._of(op).has(op, *more, **named)

    def require(self, *ops, **named):
        for op in ops:
            self._of(op).require(op, **named)


def with_portable_gemms(device: Gpu) -> Gpu:
    """Return the GPU with the GEMMs of ``portable/``, compiled if they are not."""
    catalogue, folder = Catalogue(), kernels_dir()
    include, jobs = catalogue.root / "include", {}
    for source in catalogue.sources(PORTABLE):
        cubin = folder / catalogue.cubin_name(source, device.arch)
        if source.formats and not cubin.is_file():
            jobs[cubin] = build.Job(source, device.arch, cubin)
    if jobs:
        nvcc = build.find_nvcc()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: build.compile_one(job, nvcc, include), jobs.values()))
    portable = KernelSet(catalogue, catalogue.hardware[PORTABLE], device.arch, folder, device.stream)
    return replace(device, kernels=PortableGemms(device.kernels, portable))
