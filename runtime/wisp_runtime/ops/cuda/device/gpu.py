"""An open GPU: its properties, its stream, its kernels, its scratch memory. One a process, one thread.

The context is the primary one, which CuPy uses too.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cupy as cp
from cuda.bindings import driver as cu

from wisp_runtime.batch import Array
from wisp_runtime.config import kernels_dir
from wisp_runtime.errors import GpuUnavailable, ShapeError
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.driver import (
    DRIVER_TOO_OLD,
    NO_DRIVER,
    OLDEST_DRIVER,
    failure_of,
    ok,
    translate,
)
from wisp_runtime.ops.cuda.device.kernels import KernelSet
from wisp_runtime.ops.cuda.device.manifest import EVERY_MODEL, Capability
from wisp_runtime.ops.cuda.device.pinned_uploads import PinnedUploads
from wisp_runtime.ops.cuda.device.workspace import Workspace

__all__ = ["Gpu", "capability_of", "open_gpu", "tensor_map_2d", "tensor_map_3d", "translate"]

_SWIZZLE_BYTES = 128


@dataclass(frozen=True)
class Gpu:
    """A GPU that is ready to compute.

    Attributes:
        index: number among the GPUs that this process sees.
        name: the driver's name for it.
        capability: compute capability.
        arch: architecture that its kernels are compiled for, e.g. ``sm_90a``.
        sm_count: SMs.
        shared_bytes: shared memory that a block may ask for.
        stream: the one stream; it is also this thread's current stream of CuPy.
        kernels: compiled kernels.
        workspace: scratch memory of a step.
        uploads: copies of a step's small tables.
    """

    index: int
    name: str
    capability: Capability
    arch: str
    sm_count: int
    shared_bytes: int
    stream: Any
    kernels: KernelSet
    workspace: Workspace
    uploads: PinnedUploads

    def free_bytes(self) -> int:
        """Return the GPU's free memory, CuPy's unused blocks given back first."""
        with translate("asking for free memory"):
            cp.get_default_memory_pool().free_all_blocks()
            return int(cp.cuda.runtime.memGetInfo()[0])

    def synchronize(self) -> None:
        """Wait for all launches.

        Raises:
            KernelFault: a kernel failed; the process must end.
        """
        with translate(f"waiting for GPU {self.index}"):
            self.stream.synchronize()


def open_gpu(index: int = 0, *, model: str = EVERY_MODEL) -> Gpu:
    """Open GPU ``index`` of those this process sees, and make it and its stream current.

    Args:
        index: number of the GPU, from 0.
        model: shape whose own kernels come first.

    Raises:
        GpuUnavailable: no such GPU, a driver that is too old, or another process holds it.
        GpuOutOfMemory: no memory even for a context.
        KernelsMissing: no kernels for this kind of GPU.
    """
    doing = f"opening GPU {index}"
    capability = capability_of(index)
    catalogue = Catalogue()
    hardware, arch = catalogue.find(capability)
    with translate(doing):
        cp.cuda.Device(index).use()
        cp.cuda.runtime.free(0)  # makes the context
        stream = _stream(index)
        # Not use(): each copy of a strided array to the host ends by making the top of CuPy's stack current.
        stream.__enter__()
    handle = ok(cu.cuDeviceGet(index), doing)
    return Gpu(
        index=index,
        name=ok(cu.cuDeviceGetName(128, handle), doing).partition(b"\0")[0].decode(),
        capability=capability,
        arch=arch,
        sm_count=_attribute("MULTIPROCESSOR_COUNT", handle),
        shared_bytes=_attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", handle),
        stream=stream,
        kernels=KernelSet(catalogue, hardware, arch, kernels_dir(), stream, model),
        workspace=Workspace(),
        uploads=PinnedUploads(stream),
    )


def capability_of(index: int) -> Capability:
    """Query the compute capability of GPU ``index``; nothing is allocated on it.

    Raises:
        GpuUnavailable: no driver, one that is too old, or no such GPU.
    """
    doing = f"looking at GPU {index}"
    try:
        code, version = cu.cuDriverGetVersion()
    except RuntimeError as error:  # the bindings' word for a library that is not there
        raise GpuUnavailable(f"{doing}: {NO_DRIVER}") from error
    if code or version < OLDEST_DRIVER:
        raise failure_of(int(code) or DRIVER_TOO_OLD, doing)
    ok(cu.cuInit(0), doing)
    handle = ok(cu.cuDeviceGet(index), doing)
    return _attribute("COMPUTE_CAPABILITY_MAJOR", handle), _attribute("COMPUTE_CAPABILITY_MINOR", handle)


def tensor_map_2d(array: Array, box_rows: int, box_cols: int) -> ctypes.Array[ctypes.c_uint64]:
    """Describe ``array`` to the bulk copy engine: boxes with the 128-byte swizzle, zeros outside.

    Args:
        array: ``[rows, columns]`` bf16; rows may be apart by any multiple of 16 bytes.
        box_rows: rows of a box, at most 256.
        box_cols: columns of a box, at most 64 (128 bytes).

    Returns:
        The 128 bytes of a ``CUtensorMap``, to pass to a kernel by value.
    """
    return _tensor_map(array, (box_rows, box_cols))


def tensor_map_3d(
    array: Array, box_planes: int, box_rows: int, box_cols: int
) -> ctypes.Array[ctypes.c_uint64]:
    """Describe ``[planes, rows, columns]`` as :func:`tensor_map_2d` does."""
    return _tensor_map(array, (box_planes, box_rows, box_cols))


def _tensor_map(array: Array, box: tuple[int, ...]) -> ctypes.Array[ctypes.c_uint64]:
    if array.dtype != BF16 or array.ndim != len(box) or array.strides[-1] != BF16.itemsize:
        given = f"{array.dtype} {array.shape}, strides {array.strides} bytes"
        raise ShapeError(f"a tensor map takes {len(box)} dimensions of bf16, the last dense, not {given}")
    outer_strides = [int(stride) for stride in array.strides[:-1]]
    if array.data.ptr % 16 or any(stride % 16 for stride in outer_strides):
        raise ShapeError(f"a tensor map takes rows aligned to 16 bytes; strides are {array.strides}")
    if box[-1] * BF16.itemsize > _SWIZZLE_BYTES or max(box) > 256:
        raise ShapeError(f"a tensor map's box is at most 256 a dimension and 64 columns, not {box}")
    tensor_map = ok(
        cu.cuTensorMapEncodeTiled(
            cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            len(box),
            array.data.ptr,
            [cu.cuuint64_t(size) for size in reversed(array.shape)],
            [cu.cuuint64_t(stride) for stride in reversed(outer_strides)],
            [cu.cuuint32_t(size) for size in reversed(box)],
            [cu.cuuint32_t(1)] * len(box),
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
        f"describing an array {array.shape} to the copy engine",
    )
    raw = (ctypes.c_uint64 * 16)()
    ctypes.memmove(raw, int(tensor_map.getPtr()), ctypes.sizeof(raw))
    return raw


@lru_cache
def _stream(index: int) -> Any:
    """Return this process's one stream on GPU ``index``; opening the GPU makes it the current one."""
    with cp.cuda.Device(index):
        return cp.cuda.Stream(non_blocking=True)


def _attribute(name: str, handle: Any) -> int:
    attribute = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(ok(cu.cuDeviceGetAttribute(attribute, handle), f"asking for {name}"))
