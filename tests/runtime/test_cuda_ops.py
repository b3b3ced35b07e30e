"""Which buffer takes a product's result, and what is asked before weights are read. CuPy is a stand-in."""

import importlib
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from wisp_runtime.errors import GpuOutOfMemory, KernelsMissing
from wisp_runtime.ops.cuda.catalogue import Catalogue


class FakeWorkspace:
    """Buffers grow as the real one's do: what is replaced lies elsewhere."""

    def __init__(self):
        self.bytes, self.grown = {}, 0

    def array(self, name, shape, dtype):
        needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
        address, size = self.bytes.get(name, (0, -1))
        if size < needed:
            self.grown += 1
            address = self.grown << 20
            self.bytes[name] = address, needed
        return SimpleNamespace(shape=shape, data=SimpleNamespace(ptr=address))


@pytest.fixture
def module(monkeypatch):
    """The module ``ops/cuda/ops.py``, imported with the stand-ins."""
    for name, stand_in in (
        ("cupy", MagicMock()),
        ("cuda", ModuleType("cuda")),
        ("cuda.bindings", MagicMock()),
    ):
        monkeypatch.setitem(sys.modules, name, stand_in)
    before = set(sys.modules)
    yield importlib.import_module("wisp_runtime.ops.cuda.ops")
    for name in set(sys.modules) - before:
        if name.startswith("wisp_runtime.ops.cuda."):
            del sys.modules[name]


@pytest.fixture
def ops(module):
    ops = module.CudaOps(MagicMock(workspace=FakeWorkspace()))
    ops._linear = MagicMock()
    return ops


def name_of(ops):
    return ops._linear.call_args.kwargs["out_name"]


def test_a_product_of_the_norm_is_qkv_and_leaves_the_norms_buffer_alone(module, ops):
    workspace = ops.device_state.workspace
    normed = workspace.array("normed", (4, 64), module.BF16)
    swiglu = workspace.array("swiglu", (4, 256), module.BF16)
    ops.linear(normed, None)
    assert name_of(ops) == "qkv"
    ops.linear(swiglu, None)
    assert name_of(ops) == "output"
    assert workspace.bytes["normed"][1] == 4 * 64 * 2


def test_a_kernel_that_is_not_compiled_is_missed_when_the_gpu_is_opened(module, monkeypatch):
    kernels = MagicMock()
    kernels.require.side_effect = KernelsMissing("linear")
    monkeypatch.setattr(module, "open_device", lambda: MagicMock(kernels=kernels))
    with pytest.raises(KernelsMissing):
        module.CudaOps.open()
    known = Catalogue().resolve("hopper")
    assert set(kernels.require.call_args.args) == known.keys() - {"fill_random"}  # for models without weights


class OutOfMemoryError(MemoryError):
    pass


OutOfMemoryError.__module__ = "cupy.cuda.memory"


def test_a_table_that_finds_no_memory_says_so(module, ops, monkeypatch):
    monkeypatch.setattr(module, "to_device", MagicMock(side_effect=OutOfMemoryError))
    with pytest.raises(GpuOutOfMemory, match="copying an array to the GPU"):
        ops.from_host(np.zeros(4, np.float32))
