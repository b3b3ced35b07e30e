"""Failures of the runtime for the CUDA driver's error codes.

Pure: neither CuPy nor the driver is loaded. Driver and runtime API number these errors alike
(``cuda.h``, ``CUresult``; ``driver_types.h``, ``cudaError_t``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wisp_runtime.errors import (
    DeviceFailed,
    EngineFailed,
    GpuOutOfMemory,
    GpuUnavailable,
    KernelFault,
    KernelsMissing,
    RuntimeFailure,
)

OLDEST_DRIVER = 13000
"""The least ``cuDriverGetVersion`` that loads our cubins: CUDA 13.0, driver 580."""

OUT_OF_MEMORY, DRIVER_TOO_OLD, NO_GPU = 2, 35, 100
_TOO_OLD = "the NVIDIA driver is older than CUDA 13. Install driver 580 or newer on the node."
_ASK_FOR_ONE = (
    "In a container, ask for a GPU (nvidia.com/gpu: 1, or docker run --gpus all); or serve with --device cpu."
)
NO_DRIVER = f"there is no NVIDIA driver here (libcuda.so.1). {_ASK_FOR_ONE}"
_NONE_THERE = (
    "this process sees no such NVIDIA GPU. Look at nvidia-smi, and let CUDA_VISIBLE_DEVICES name only "
    f"what is there. {_ASK_FOR_ONE}"
)
_HELD = (
    "another process holds the GPU alone (compute mode EXCLUSIVE_PROCESS), or nobody may use it "
    "(PROHIBITED). End that process, or set the mode with nvidia-smi -c DEFAULT."
)
_NOT_READY = (
    "the node's GPU services are not running yet (on NVSwitch machines, the fabric manager). "
    "Start them; this process is tried again."
)
_MISMATCH = (
    "the driver's library and its kernel module are of different versions. Restart the node so that both are "
    "of the version that was installed."
)
_UNAVAILABLE = {
    34: "the CUDA library here is a stub, not a driver. Take the stub folder out of LD_LIBRARY_PATH.",
    DRIVER_TOO_OLD: _TOO_OLD,
    **dict.fromkeys((3, NO_GPU, 101), _NONE_THERE),
    46: _HELD,
    802: _NOT_READY,
    **dict.fromkeys((803, 804), _MISMATCH),
}
_UNLOADABLE = {
    200: "the file is no cubin",
    209: "the cubin is for another GPU",
    500: "the cubin has no such kernel",
}
_FAULTS = {
    700: "read or wrote an address that is not its own",
    702: "ran longer than the driver allows (a GPU that also drives a display has such a limit)",
    710: "met an assertion",
    714: "overflowed its stack",
    715: "met an instruction that it cannot run",
    716: "read or wrote an address that is not aligned",
    717: "used an address space that it must not",
    718: "jumped to an address that holds no code",
    719: "ended in an error that the driver does not name",
}
_BROKEN = {
    214: "the GPU's memory has an error that ECC cannot correct",
    220: "the link between GPUs has an error that cannot be corrected",
    226: "the GPU contained a memory error, and ended what used it",
    304: "the operating system refused a call of the driver",
    709: "the context was destroyed under us",
    721: "the GPU was reset, or fell off the bus",
    999: "the driver reported an error that it does not name",
}
FAULT_REPORTERS: list[Callable[[], str | None]] = []
"""Kernels that detect a hang add a function here: it describes the wait that timed out, or returns None."""

STICKY = frozenset({*_FAULTS, *_BROKEN})
"""Codes after which nothing on this context works again: the process has to end."""


def failure_of(code: int, doing: str) -> RuntimeFailure:
    """Return what to raise for error ``code`` of the driver.

    Args:
        code: ``CUresult`` or ``cudaError_t``, not 0.
        doing: activity that failed, the start of the message: ``opening GPU 0``.
    """
    error = f"CUDA error {code}"
    if code == OUT_OF_MEMORY:
        says = (
            "the GPU has not enough free memory. Another process may hold it (nvidia-smi); "
            "else lower --memory-fraction or --kv-cache-memory."
        )
        return GpuOutOfMemory(f"{doing}: {says}", code=code)
    if code in _UNAVAILABLE:
        return GpuUnavailable(f"{doing}: {_UNAVAILABLE[code]}", code=code)
    if code in _UNLOADABLE:
        says = f"{_UNLOADABLE[code]} ({error}). Remove it and run `wisp-runtime kernels build` again."
        return KernelsMissing(f"{doing}: {says}", code=code)
    if code in _FAULTS:
        for describe in FAULT_REPORTERS:
            if description := describe():
                return KernelFault(
                    f"{doing}: {description} (CUDA error {code}). This happens where something else holds a "
                    "part of the GPU (MPS, another process's kernels): give the model a GPU of its own, or "
                    "set --decode-path general (spec.runtime.decodePath).",
                    code=code,
                    hang=description,
                )
        says = (
            f"a kernel, this or one before it, {_FAULTS[code]} ({error}). This is a bug of ours: nothing on "
            "the GPU can be trusted any more, so this process ends. Report it with the log."
        )
        return KernelFault(f"{doing}: {says}", code=code)
    if code in _BROKEN:
        says = f"{_BROKEN[code]} ({error}). Look at nvidia-smi and dmesg (Xid) on the node."
        return DeviceFailed(f"{doing}: {says} Drain the node if it comes back.", code=code)
    return EngineFailed(f"{doing}: the driver refused it ({error}). This is a bug of ours.", code=code)


def ok(result: tuple[Any, ...], doing: str) -> Any:
    """Unpack what a function of ``cuda.bindings.driver`` returned: one value, several, or none.

    Raises:
        RuntimeFailure: it returned an error.
    """
    code, *values = result
    if code:
        raise failure_of(int(code), doing)
    return values[0] if len(values) == 1 else tuple(values)


@contextmanager
def translate(doing: str) -> Iterator[None]:
    """Turn the driver's errors that CuPy raises inside the block into ours; others pass.

    Raises:
        RuntimeFailure: see :func:`failure_of`.
    """
    try:
        yield
    except Exception as error:
        code = code_of(error)
        if code is None:
            raise
        raise failure_of(code, doing) from error


def code_of(error: BaseException) -> int | None:
    """Return the CUDA error code that an exception of CuPy stands for; None of any other exception."""
    kind = type(error)
    if kind.__module__.partition(".")[0] not in ("cupy", "cupy_backends"):
        return None
    if kind.__name__ == "OutOfMemoryError":
        return OUT_OF_MEMORY
    if kind.__name__ in ("CUDARuntimeError", "CUDADriverError"):
        return int(getattr(error, "status", 0)) or None
    return None
