"""Load compiled kernels and launch them with little Python.

A launch goes through ``cuLaunchKernelEx``, so that from Hopper on it may overlap the end of the kernel before
it (programmatic dependent launch) and form clusters. Nothing is compiled here. Not thread-safe.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
from cuda.bindings import driver as cu

from wisp_runtime.errors import KernelNotCompiled, KernelsMissing, ShapeError
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.driver import failure_of, ok
from wisp_runtime.ops.cuda.device.manifest import EVERY_MODEL, Absent, Hardware, Model, Source

_OVERLAPS_FROM = 90  # sm_90: older GPUs have no programmatic dependent launch
_DEFAULT_SHARED_BYTES = 48 * 1024
_MAX_CONFIGS = 4096  # grids differ with the tokens of a step; the cache is cleared at this size
_SLOT_BYTES = 8
_CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "b1": "?"}
_CODES |= {"f2": "e", "f4": "f", "f8": "d"}
_BF16 = "bf16"
_BY_VALUE = (ctypes.Structure, ctypes.Union, ctypes.Array)
_ARRAY = cp.ndarray


class KernelSet:
    """The kernels of one GPU and model, for weights of any format; a cubin is loaded at its first use."""

    def __init__(
        self,
        catalogue: Catalogue,
        hardware: Hardware,
        arch: str,
        folder: Path,
        stream: Any,
        model: str = EVERY_MODEL,
    ) -> None:
        """Choose the sources of bf16 weights; those of another format follow at its first use.

        Args:
            catalogue: the kernel folders.
            hardware, arch: this GPU's, and its architecture, e.g. ``sm_90a``.
            folder: folder of the cubins.
            stream: stream on which every kernel is launched.
            model: shape whose own kernels come first.
        """
        self._hardware, self._model = hardware.name, model
        self.name = self._name(_BF16)
        self.arch, self.folder = arch, folder
        self.chosen = catalogue.resolve(hardware.name, _BF16, model)
        self._by_format = {_BF16: self.chosen}
        self._catalogue, self._stream = catalogue, stream
        self._modules: dict[str, Any] = {}
        self._paths: dict[Source, Path] = {}  # a path needs the hash of every header: once a source
        self._kernels: dict[tuple[str, str, str], Kernel] = {}
        self._opened: dict[tuple[str, str], Kernel] = {}

    def get(self, op: str, entry: str | None = None, weight_format: str = _BF16) -> Kernel:
        """Return a kernel of ``op``: the one named like it, or another ``entry`` of its file.

        Raises:
            KernelsMissing: this hardware has no such kernel, or it is not compiled.
        """
        key = (op, entry or op, weight_format)
        if key not in self._kernels:
            self._kernels[key] = self._open(*self._cubin(op, weight_format), entry or op)
        return self._kernels[key]

    def get_template(self, op: str, model: Model, entry: str, weight_format: str = _BF16) -> Kernel:
        """Return a kernel of the template ``op``, compiled for ``model``.

        Raises:
            KernelsMissing: this hardware has no such template; KernelNotCompiled: none for this model.
        """
        templates = self._catalogue.templates(self._hardware, weight_format, model)
        source = next((each for each in templates if each.op == op), None)
        if source is None:
            raise KernelsMissing(f"{self._hardware} has no {op} that reads {weight_format} weights.")
        if not self._path(source).is_file():
            raise KernelNotCompiled(
                f"{op} is not compiled for a model of this shape in {weight_format}. Run `wisp-runtime "
                "kernels build --for MODEL`, with serve's flags of formats, where the image is built."
            )
        return self._open(source, self._compiled(source), entry)

    def has(self, op: str, weight_format: str = _BF16) -> bool:
        """Return whether this hardware has a kernel for ``op``, compiled or not."""
        return isinstance(self._sources(weight_format).get(op), Source)

    def require(self, *ops: str, weight_format: str = _BF16) -> None:
        """Check that all of ``ops`` exist and are compiled, before expensive work.

        Raises:
            KernelsMissing: names the first missing one.
        """
        for op in ops:
            self._cubin(op, weight_format)

    def preload(self, *ops: str, weight_format: str = _BF16) -> int:
        """Load every kernel of ``ops``, as must not happen while a stream is captured; return how many.

        Raises:
            KernelsMissing: see :meth:`get`.
        """
        entries = [(op, entry) for op in ops for entry in self._cubin(op, weight_format)[0].entries]
        return len([self.get(op, entry, weight_format) for op, entry in entries])

    def _name(self, weight_format: str) -> str:
        return f"{self._hardware}/{self._model}/{weight_format}"

    def _sources(self, weight_format: str) -> dict[str, Source | Absent]:
        if weight_format not in self._by_format:
            self._by_format[weight_format] = self._catalogue.resolve(
                self._hardware, weight_format, self._model
            )
        return self._by_format[weight_format]

    def _cubin(self, op: str, weight_format: str) -> tuple[Source, Path]:
        sources, name = self._sources(weight_format), self._name(weight_format)
        source = sources.get(op)
        if source is None:
            raise KernelsMissing(f"there is no op {op}; {name} has {', '.join(sources)}.")
        if isinstance(source, Absent):
            raise KernelsMissing(f"{name} has no kernel for {op}: {source.why}")
        return source, self._compiled(source)

    def _compiled(self, source: Source) -> Path:
        path = self._path(source)
        if not path.is_file():
            raise KernelsMissing(
                f"the kernel {source.name} is not compiled for {self.arch}: {path} is not "
                f"there. Run `wisp-runtime kernels build --arch {self.arch}`, or use Wisp's image for NVIDIA "
                "GPUs, which has it."
            )
        return path

    def _path(self, source: Source) -> Path:
        if source not in self._paths:
            self._paths[source] = self.folder / self._catalogue.cubin_name(source, self.arch)
        return self._paths[source]

    def _open(self, source: Source, path: Path, entry: str) -> Kernel:
        if entry not in source.entries:
            known = ", ".join(source.entries)
            raise KernelsMissing(f"{source.name} has no kernel {entry}; it has {known}.")
        key = path.name, entry  # formats share kernels, whose attributes the driver keeps once
        if key in self._opened:
            return self._opened[key]
        doing = f"loading {entry} of {path}"
        if path.name not in self._modules:
            self._modules[path.name] = ok(cu.cuModuleLoadData(path.read_bytes()), doing)
        function = ok(cu.cuModuleGetFunction(self._modules[path.name], entry.encode()), doing)
        number = int("".join(filter(str.isdigit, self.arch)))
        self._opened[key] = Kernel(entry, function, self._stream, can_overlap=number >= _OVERLAPS_FROM)
        return self._opened[key]


class Kernel:
    """One ``__global__`` function on the GPU."""

    def __init__(self, name: str, function: Any, stream: Any, *, can_overlap: bool) -> None:
        self.name = name
        self._function, self._stream, self._can_overlap = function, stream, can_overlap
        self._configs: dict[tuple[tuple[int, ...], int, int, int], Any] = {}
        self._shared_limit_bytes = _DEFAULT_SHARED_BYTES
        self._parameter_bytes = _parameter_bytes(function)
        count = max(len(self._parameter_bytes), 1)
        # Arguments of up to 8 bytes are packed into slots at each launch; the driver reads them by pointer.
        self._slots = (ctypes.c_uint64 * count)()
        first = ctypes.addressof(self._slots)
        self._pointers = (ctypes.c_void_p * count)(*range(first, first + _SLOT_BYTES * count, _SLOT_BYTES))
        self._pointers_address = ctypes.addressof(self._pointers)
        self._pack: Callable[..., None] | None = None
        self._by_value: tuple[int, ...] = ()

    def launch(
        self, grid: tuple[int, ...], block: int, *args: Any, shared_bytes: int = 0, cluster: int = 1
    ) -> None:
        """Launch on the device's stream; returns before the kernel has run.

        The first launch compares the arguments with the kernel's parameters; later ones check nothing.

        Args:
            grid: 1 to 3 counts of thread blocks, the first a multiple of ``cluster``.
            block: threads of a block.
            args: CuPy arrays (their pointers; None is the null pointer), NumPy scalars of the parameter's own
                type, ctypes structures and arrays (by value).
            shared_bytes: dynamic shared memory of a block.
            cluster: thread blocks of a cluster, at most 8.

        Raises:
            ShapeError: the kernel takes other arguments.
            RuntimeFailure: the driver refused the launch, or an earlier kernel failed.
        """
        config = self._configs.get((grid, block, shared_bytes, cluster))
        if config is None:
            config = self._configure(grid, block, shared_bytes, cluster)
        pack = self._pack or self._packer(args)
        values: list[Any] = [
            arg.data.ptr if arg.__class__ is _ARRAY else 0 if arg is None else arg for arg in args
        ]
        for i in self._by_value:
            self._pointers[i], values[i] = ctypes.addressof(values[i]), 0
        try:
            pack(self._slots, 0, *values)
        except struct.error as error:
            raise ShapeError(f"{self.name} takes other arguments: {error}") from error
        (code,) = cu.cuLaunchKernelEx(config, self._function, self._pointers_address, 0)
        if code:
            raise failure_of(int(code), f"launching {self.name} with grid {grid}, block {block}")

    def clusters_at_once(self, block: int, *, shared_bytes: int = 0, cluster: int = 1) -> int:
        """Return how many clusters of ``cluster`` blocks the GPU runs at the same time."""
        config = self._configure((cluster,), block, shared_bytes, cluster)
        doing = f"querying the active clusters of {self.name}"
        return int(ok(cu.cuOccupancyMaxActiveClusters(self._function, config), doing))

    def _packer(self, args: tuple[Any, ...]) -> Callable[..., None]:
        """Compare the first launch's arguments with the parameters; return the function that packs them."""
        sizes = self._parameter_bytes
        if len(args) != len(sizes):
            raise ShapeError(f"{self.name} takes {len(sizes)} arguments, got {len(args)}")
        for i, (arg, size) in enumerate(zip(args, sizes, strict=True)):
            if _bytes_of(arg) != size:
                raise ShapeError(
                    f"{self.name}: parameter {i} has {size} bytes, got {type(arg).__name__} {arg!r:.60}. "
                    "Pass CuPy arrays for pointers, NumPy scalars of the parameter's type, ctypes structures"
                )
        codes = [_code_of(arg) for arg in args]
        self._by_value = tuple(i for i, arg in enumerate(args) if isinstance(arg, _BY_VALUE))
        padded = [code + f"{_SLOT_BYTES - struct.calcsize(code)}x" for code in codes]
        self._pack = struct.Struct("<" + "".join(padded)).pack_into
        return self._pack

    def _configure(self, grid: tuple[int, ...], block: int, shared_bytes: int, cluster: int) -> Any:
        if shared_bytes > self._shared_limit_bytes:
            limit = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            doing = f"giving {self.name} {shared_bytes} bytes of shared memory"
            ok(cu.cuFuncSetAttribute(self._function, limit, shared_bytes), doing)
            self._shared_limit_bytes = shared_bytes
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes, config.hStream = shared_bytes, cu.CUstream(self._stream.ptr)
        attributes = _attributes(self._can_overlap, cluster)
        config.attrs, config.numAttrs = attributes, len(attributes)
        if len(self._configs) >= _MAX_CONFIGS:
            self._configs.clear()
        self._configs[grid, block, shared_bytes, cluster] = config
        return config


def _bytes_of(arg: Any) -> int:
    """Return the bytes of an argument; 0 if it cannot be passed."""
    if arg is None or type(arg) is _ARRAY:
        return _SLOT_BYTES
    if isinstance(arg, _BY_VALUE):
        return ctypes.sizeof(arg)
    return arg.dtype.itemsize if isinstance(arg, np.generic) and arg.dtype.str[1:] in _CODES else 0


def _code_of(arg: Any) -> str:
    """Return the :mod:`struct` code of an argument; by-value structures leave their slot unused."""
    return _CODES[arg.dtype.str[1:]] if isinstance(arg, np.generic) else "Q"


def _attributes(can_overlap: bool, cluster: int) -> list[Any]:
    attributes = []
    if can_overlap:
        overlap, allowed = cu.CUlaunchAttribute(), cu.CUlaunchAttributeValue()
        overlap.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        allowed.programmaticStreamSerializationAllowed = 1
        overlap.value = allowed
        attributes.append(overlap)
    if cluster > 1:
        clusters, size = cu.CUlaunchAttribute(), cu.CUlaunchAttributeValue()
        clusters.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size.clusterDim.x, size.clusterDim.y, size.clusterDim.z = cluster, 1, 1
        clusters.value = size
        attributes.append(clusters)
    return attributes


def _parameter_bytes(function: Any) -> tuple[int, ...]:
    """Return the size of each parameter from the cubin."""
    sizes: list[int] = []
    while True:
        code, *info = cu.cuFuncGetParamInfo(function, len(sizes))
        if code:
            return tuple(sizes)
        sizes.append(int(info[1]))
