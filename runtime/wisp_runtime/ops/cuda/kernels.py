"""Load compiled kernels and launch them with as little Python as there can be, a few microseconds each.

A launch goes through ``cuLaunchKernelEx``, so that on Hopper it may overlap the end of the kernel before it
(programmatic dependent launch) and form clusters. Nothing is compiled here. Not for several threads.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
from cuda.bindings import driver as cu

from wisp_runtime.batch import Array
from wisp_runtime.errors import KernelsMissing, ShapeError
from wisp_runtime.ops.cuda.catalogue import Absent, Catalogue, Hardware, Source
from wisp_runtime.ops.cuda.driver import failure_of, ok

_SHARED_WITHOUT_ASKING_BYTES = 48 * 1024
_Key = tuple[tuple[int, ...], int, int, int]


class KernelSet:
    """The kernels of one GPU, model and quantization; a cubin is loaded when its first kernel is asked for."""

    def __init__(
        self, catalogue: Catalogue, hardware: Hardware, arch: str, folder: Path, stream: Any, **choice: str
    ) -> None:
        """Choose the sources.

        Args:
            catalogue: of the kernel folders.
            hardware: of this GPU.
            arch: of this GPU, e.g. ``sm_90a``.
            folder: of the cubins.
            stream: on which every kernel is launched.
            choice: ``quant`` and ``model``, as :meth:`.catalogue.Catalogue.resolve` takes them.
        """
        self.hardware, self.arch, self.folder = hardware, arch, folder
        self.chosen = catalogue.resolve(hardware.name, **choice)
        self.name = f"{hardware.name}/{choice.get('model', 'common')}/{choice.get('quant', 'bf16')}"
        self._catalogue, self._stream = catalogue, stream
        self._modules: dict[str, Any] = {}
        self._kernels: dict[tuple[str, str], Kernel] = {}

    def get(self, op: str, entry: str | None = None) -> Kernel:
        """Return a kernel of ``op``: the one named like it, or another ``entry`` of its file.

        Raises:
            KernelsMissing: this hardware has no such kernel, or it is not compiled.
        """
        key = (op, entry or op)
        if key not in self._kernels:
            self._kernels[key] = self._load(*key)
        return self._kernels[key]

    def has(self, op: str) -> bool:
        """Return whether this hardware has a kernel for ``op``, compiled or not."""
        return isinstance(self.chosen.get(op), Source)

    def require_all(self, ops: tuple[str, ...]) -> None:
        """Check that kernels for all of ``ops`` are there and compiled.

        Raises:
            KernelsMissing: names the first that is not.
        """
        for op in ops:
            self._cubin(op)

    def _cubin(self, op: str) -> tuple[Source, Path]:
        source = self.chosen.get(op)
        if source is None:
            raise KernelsMissing(f"there is no kernel {op} at all; {self.name} knows {', '.join(self.chosen)}.")
        if isinstance(source, Absent):
            raise KernelsMissing(f"{self.name} has no kernel for {op}: {source.why} (kernels/{source.leaf}).")
        path = self.folder / self._catalogue.cubin_name(source, self.arch)
        if not path.is_file():
            raise KernelsMissing(
                f"the kernel {op} of {source.leaf} is not compiled for {self.arch}: {path} is not there. "
                f"Run `wisp-runtime kernels build --arch {self.arch}`, or use Wisp's image for NVIDIA GPUs, "
                "which has them."
            )
        return source, path

    def _load(self, op: str, entry: str) -> Kernel:
        source, path = self._cubin(op)
        if op not in self._modules:
            self._modules[op] = ok(cu.cuModuleLoadData(path.read_bytes()), f"loading {path.name}")
        if entry not in source.entries:
            raise KernelsMissing(f"{source.leaf}/{op}.cu has no kernel {entry}; it has {', '.join(source.entries)}.")
        function = ok(cu.cuModuleGetFunction(self._modules[op], entry.encode()), f"loading {entry} of {path.name}")
        return Kernel(entry, function, self._stream, can_overlap=self.arch.startswith(("sm_9", "sm_1")))


class Kernel:
    """One ``__global__`` function on the GPU."""

    def __init__(self, name: str, function: Any, stream: Any, *, can_overlap: bool) -> None:
        self.name, self.function = name, function
        self._stream, self._can_overlap = stream, can_overlap
        self._configs: dict[_Key, Any] = {}
        self._shared_limit_bytes = _SHARED_WITHOUT_ASKING_BYTES
        self._parameter_bytes = _parameter_bytes(function)
        count = max(len(self._parameter_bytes), 1)
        self._slots = (ctypes.c_uint64 * count)()  # values up to 8 bytes live here, the others where they are
        self._pointers = (ctypes.c_void_p * count)()
        self._slot_addresses = [ctypes.addressof(self._slots) + 8 * i for i in range(count)]
        self._pointers[:] = self._slot_addresses
        self._pointers_address = ctypes.addressof(self._pointers)

    def launch(
        self, grid: tuple[int, ...], block: int, *args: Any, shared_bytes: int = 0, cluster: int = 1
    ) -> None:
        """Launch on the device's stream; returns before the kernel has run. Nothing is checked.

        Args:
            grid: 1 to 3 counts of thread blocks, a multiple of ``cluster`` along the first.
            block: threads of a block.
            args: CuPy arrays (their pointers; None is the null pointer), NumPy scalars of the parameter's own
                type, ctypes structures and arrays (by value).
            shared_bytes: dynamic shared memory of a block.
            cluster: thread blocks of a cluster.

        Raises:
            RuntimeFailure: the driver refused the launch, or an earlier kernel failed.
            ShapeError: the kernel takes another number of arguments.
        """
        config = self._configs.get((grid, block, shared_bytes, cluster))
        if config is None:
            config = self._configure(grid, block, shared_bytes, cluster)
        if len(args) != len(self._parameter_bytes):
            raise ShapeError(f"{self.name} takes {len(self._parameter_bytes)} arguments, got {len(args)}")
        self._pack(args)
        (code,) = cu.cuLaunchKernelEx(config, self.function, self._pointers_address, 0)
        if code:
            raise failure_of(int(code), f"launching {self.name} with grid {grid}, block {block}")

    def clusters_at_once(self, block: int, *, shared_bytes: int = 0, cluster: int = 1) -> int:
        """Return how many clusters of ``cluster`` blocks the GPU runs at the same time."""
        config = self._configure((cluster,), block, shared_bytes, cluster)
        return int(ok(cu.cuOccupancyMaxActiveClusters(self.function, config), f"asking for clusters of {self.name}"))

    def _pack(self, args: tuple[Any, ...]) -> None:
        slots, pointers = self._slots, self._pointers
        for i, value in enumerate(args):
            kind = value.__class__
            if kind is cp.ndarray:
                slots[i] = value.data.ptr
            elif kind is np.int32 or kind is np.int64 or kind is np.uint32 or kind is np.uint64:
                slots[i] = int(value)  # little-endian: the low bytes come first
            elif value is None:
                slots[i] = 0
            elif isinstance(value, np.generic):
                slots[i] = int.from_bytes(value.tobytes(), "little")
            elif isinstance(value, ctypes.Structure | ctypes.Array | ctypes._SimpleCData):
                pointers[i] = ctypes.addressof(value)
            else:
                raise ShapeError(
                    f"argument {i} of {self.name} is a {kind.__name__}; pass CuPy arrays, NumPy scalars "
                    "(np.int32(...)) or ctypes values"
                )

    def _configure(self, grid: tuple[int, ...], block: int, shared_bytes: int, cluster: int) -> Any:
        if shared_bytes > self._shared_limit_bytes:
            limit = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            doing = f"giving {self.name} {shared_bytes} bytes of shared memory"
            ok(cu.cuFuncSetAttribute(self.function, limit, shared_bytes), doing)
            self._shared_limit_bytes = shared_bytes
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes, config.hStream = shared_bytes, cu.CUstream(self._stream.ptr)
        attributes = _attributes(self._can_overlap, cluster)
        config.attrs, config.numAttrs = attributes, len(attributes)
        self._configs[grid, block, shared_bytes, cluster] = config
        return config


def _attributes(can_overlap: bool, cluster: int) -> list[Any]:
    attributes = []
    if can_overlap:
        overlap = cu.CUlaunchAttribute()
        overlap.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        value = cu.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        overlap.value = value
        attributes.append(overlap)
    if cluster > 1:
        clusters = cu.CUlaunchAttribute()
        clusters.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        clusters.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        value = cu.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
        clusters.value = value
        attributes.append(clusters)
    return attributes


def _parameter_bytes(function: Any) -> tuple[int, ...]:
    """Return the size of each parameter, as the cubin says."""
    sizes: list[int] = []
    while True:
        code, *found = cu.cuFuncGetParamInfo(function, len(sizes))
        if code:
            return tuple(sizes)
        sizes.append(int(found[1]))
