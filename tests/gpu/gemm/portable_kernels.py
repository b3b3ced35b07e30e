"""The kernels of ``portable/`` on a GPU that has some of its own, for tests and measurements."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from wisp_runtime.config import kernels_dir
from wisp_runtime.ops.cuda.device import build
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import KernelSet
from wisp_runtime.ops.cuda.device.manifest import PORTABLE


def with_portable_gemms(device: Gpu) -> Gpu:
    """Return the GPU with the kernels of ``portable/`` alone; its GEMMs are compiled if they are not."""
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
    hardware = catalogue.hardware[PORTABLE]
    return replace(device, kernels=KernelSet(catalogue, hardware, device.arch, folder, device.stream))
