"""Fixtures of the GPU's tests: one open device for all of them, and random arrays.

Without CuPy or a GPU every test here is skipped. Kernels that changed are compiled first if nvcc is there.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def _gpu():
    """A GPU: CuPy may be there without one. Only parity can do with neither."""
    if os.environ.get("WISP_TEST_PARITY_DEVICE") == "cpu":
        return
    pytest.importorskip("cupy")
    from wisp_runtime.errors import GpuUnavailable
    from wisp_runtime.ops.cuda.device.gpu import capability_of

    try:
        capability_of(0)
    except GpuUnavailable as error:
        pytest.skip(error.message)


@pytest.fixture(scope="session", autouse=True)
def _small_models_stand_for_large_ones():
    """Run decode steps by the persistent kernel, whatever the weights' size."""
    from wisp_runtime.engine.persistent import strategy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategy, "_MIN_WEIGHT_BYTES", 0)
        yield


@pytest.fixture(scope="session")
def device():
    """The first GPU, with every kernel that it would serve with compiled."""
    from wisp_runtime.ops.cuda.device.gpu import capability_of, open_gpu

    _compile(capability_of(0))
    return open_gpu(0)


def _compile(capability) -> None:
    from wisp_runtime.config import kernels_dir
    from wisp_runtime.errors import CompilationFailed, CompilerMissing
    from wisp_runtime.ops.cuda.device import build
    from wisp_runtime.ops.cuda.device.catalogue import Catalogue

    catalogue = Catalogue()
    include = catalogue.root / "include"
    _, arch = catalogue.find(capability)
    missing = [job for job in build.plan(catalogue, [arch], kernels_dir()) if not job.cubin.is_file()]
    if not missing:
        return
    try:
        nvcc = build.find_nvcc()
    except CompilerMissing as error:
        names = ", ".join(job.source.op for job in missing)
        pytest.skip(f"not compiled, and no compiler: {names}. {error.message}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for job, future in [(job, pool.submit(build.compile_one, job, nvcc, include)) for job in missing]:
            try:
                print(f"compiled {job.source.op} for {arch} in {future.result().seconds:.1f} s")
            except CompilationFailed as error:  # its own tests will fail; the others can run
                print(error.message)


@pytest.fixture
def random():
    """NumPy's generator, the same numbers for each test."""
    return np.random.default_rng(20)


@pytest.fixture
def random_bf16(random):
    """Make ``random_bf16(shape, scale=1)``: normal numbers on the host, as bf16."""
    import ml_dtypes

    def make(shape, scale=1.0):
        return (random.standard_normal(shape, np.float32) * scale).astype(ml_dtypes.bfloat16)

    return make


@pytest.fixture
def device_bf16(device, random_bf16):
    """Make ``device_bf16(shape, scale=1)``: the same numbers on the host as bf16, and on the GPU."""
    from wisp_runtime.ops.cuda.device.arrays import to_device

    def make(shape, scale=1.0):
        host = random_bf16(shape, scale)
        return host, to_device(host)

    return make
