"""A GPU for the wrappers of kernels in ``ops/cuda``: arrays on the host, kernels on the emulated machine.

CuPy need not be there: :func:`imported` puts a stand-in before the wrappers' imports.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from emulated_kernel import Emulated

from wisp_plan.memory.buffers.buffer import Buffer
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.manifest import Source

CATALOGUE = Catalogue()
ALIGNMENT_BYTES = 256


class HostArray:
    """An array on the host with what wrappers ask of CuPy's.

    Attributes:
        host: the array.
    """

    def __init__(self, host: np.ndarray) -> None:
        self.host = host
        self.shape, self.strides, self.dtype, self.flags = host.shape, host.strides, host.dtype, host.flags
        self.ndim, self.size = host.ndim, host.size
        self.data = SimpleNamespace(ptr=host.ctypes.data)

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, index: Any) -> HostArray:
        return HostArray(self.host[index])


def to_gpu(array: np.ndarray) -> HostArray:
    """Return a copy that begins where CuPy's would, with the bytes of a row that are not there as NaN."""
    memory = np.full(array.nbytes + ALIGNMENT_BYTES, 0xFF, np.uint8)
    copy = memory[-memory.ctypes.data % ALIGNMENT_BYTES :][: array.nbytes].view(array.dtype)
    copy = copy.reshape(array.shape)
    copy[:] = array
    return HostArray(copy)


@cache
def _compiled(path: Path, hardware: str) -> Emulated:
    return Emulated(path, [*CATALOGUE.defines(hardware)])


class EmulatedKernel:
    """A kernel as ``device/kernels.py`` gives it."""

    def __init__(self, gpu: EmulatedGpu, op: str, entry: str, weight_format: str = "bf16") -> None:
        source = CATALOGUE.choose(op, gpu.hardware, weight_format)
        assert isinstance(source, Source), source
        assert entry in source.entries
        self._gpu, self._path, self._entry = gpu, source.path, entry

    def launch(
        self, grid: tuple[int, ...], threads: int, *given: Any, shared_bytes: int = 0, cluster: int = 1
    ) -> None:
        """Run to the end; the arguments are as a launch of the real one takes them."""
        assert shared_bytes <= self._gpu.shared_bytes
        self._gpu.launches.append(self._entry)
        _compiled(self._path, self._gpu.hardware).launch(
            self._entry,
            [_argument(value) for value in given],
            blocks=(*grid, 1, 1)[:3],
            threads=threads,
            cluster=cluster,
            seed=self._gpu.resident << 16 | self._gpu.seed,
        )


def _argument(value: Any) -> Any:
    if value is None or isinstance(value, HostArray):
        return ctypes.c_void_p(None if value is None else value.data.ptr)
    if isinstance(value, np.generic):
        return np.ctypeslib.as_ctypes_type(value.dtype)(value.item())
    assert isinstance(value, ctypes.Structure), f"{value!r} has no size of its own"
    return value


class EmulatedGpu:
    """An open GPU: kernels and a workspace. Buffers are NaN when they are made.

    Args:
        seed: order of events.
        declared: buffers of the workspace; None: every buffer is made as it is asked for.
        resident: blocks that run at once; 0: all.
        hardware: folder of its kernels, ``ampere`` or ``hopper``.

    Attributes:
        launches: entries of the kernels that were launched, in order.
    """

    sm_count, index = 8, 0

    def __init__(
        self,
        seed: int = 0,
        declared: tuple[Buffer, ...] | None = None,
        *,
        resident: int = 0,
        hardware: str = "ampere",
    ) -> None:
        self.seed, self.resident, self.hardware, self.launches = seed, resident, hardware, []
        self.arch, self.shared_bytes = ("sm_90", 232448) if hardware == "hopper" else ("sm_80", 166912)
        self.kernels = SimpleNamespace(get=self._kernel, has=self._has_kernel, name="emulated")
        self.workspace = self
        self._buffers: dict[str, np.ndarray] = {}
        self._declared = None if declared is None else {buffer.name: buffer for buffer in declared}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> HostArray:
        """Return a buffer of the workspace."""
        needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self._declared is not None:
            assert needed <= self._declared[name].size_bytes, f"{name} needs {needed} bytes"
        if name not in self._buffers or self._buffers[name].nbytes < needed:
            self._buffers[name] = to_gpu(np.full(needed, 0xFF, np.uint8)).host
        return HostArray(self._buffers[name][:needed].view(np.dtype(dtype)).reshape(shape))

    def zeroed(self, name: str, shape: tuple[int, ...], dtype: Any) -> HostArray:
        """Return a buffer that was zeroed when it was made."""
        is_made = name in self._buffers
        array = self.array(name, shape, dtype)
        if not is_made:
            array.host[...] = 0
        return array

    def buffer(self, name: str) -> np.ndarray:
        """Return a buffer of the workspace, whole, as bytes."""
        return self._buffers[name]

    def clear(self, name: str) -> None:
        """Let the next op make a buffer anew."""
        self._buffers.pop(name, None)

    def view(self, buffer: Buffer) -> HostArray:
        """Return a declared buffer."""
        known = self._buffers.get(buffer.name)
        if buffer.is_zeroed and (known is None or known.nbytes < buffer.size_bytes):
            self._buffers[buffer.name] = to_gpu(np.zeros(buffer.size_bytes, np.uint8)).host
        return self.array(buffer.name, buffer.shape, np.dtype(buffer.dtype))

    def _kernel(self, op: str, entry: str | None = None, weight_format: str = "bf16") -> EmulatedKernel:
        return EmulatedKernel(self, op, entry or op, weight_format)

    def _has_kernel(self, op: str, weight_format: str = "bf16") -> bool:
        return isinstance(CATALOGUE.choose(op, self.hardware, weight_format), Source)


@contextmanager
def imported(*names: str, cupy: Any = None, bindings: Any = None) -> Iterator[list[ModuleType]]:
    """Import modules of ``wisp_runtime.ops.cuda`` with stand-ins for CuPy and the driver; forget them after.

    Args:
        names: modules below ``wisp_runtime.ops.cuda``.
        cupy: stand-in for ``cupy``; None: one that takes every call.
        bindings: stand-in for ``cuda.bindings``, whose ``driver`` is the driver; None: as above.
    """
    stand_ins = {"cuda": ModuleType("cuda")}
    stand_ins |= {"cupy": cupy or MagicMock(), "cuda.bindings": bindings or MagicMock()}
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stand_ins.items():
            patch.setitem(sys.modules, name, module)
        yield [importlib.import_module(f"wisp_runtime.ops.cuda.{name}") for name in names]
        for name in set(sys.modules) - before:
            if name.startswith("wisp_runtime.ops.cuda."):
                del sys.modules[name]
