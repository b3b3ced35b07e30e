"""What the CUDA driver's errors mean to the person who runs us: a code becomes one of our failures.

Pure: neither CuPy nor the driver is loaded. Driver and runtime API number these errors alike
(``cuda.h``, ``CUresult``; ``driver_types.h``, ``cudaError_t``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wisp_runtime.errors import DeviceFailed, GpuOutOfMemory, GpuUnavailable, KernelFault, RuntimeFailure

OLDEST_DRIVER = 13000
"""The least ``cuDriverGetVersion`` that loads our cubins: CUDA 13.0, driver 580."""

OUT_OF_MEMORY = 2
_DRIVER_TOO_OLD = (
    "the NVIDIA driver is older than CUDA 13 wants. Install driver 580 or newer on the node, "
    "or use the image that was built for the driver you have."
)
_NO_GPU = (
    "this process sees no NVIDIA GPU. Look at nvidia-smi; in a container, ask for a GPU "
    "(nvidia.com/gpu, or docker run --gpus all) and do not set NVIDIA_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES "
    "to one that is not there; or serve with --device cpu."
)
_HELD = (
    "another process holds the GPU alone (compute mode EXCLUSIVE_PROCESS or PROHIBITED). End that process, "
    "or set the mode with nvidia-smi -c DEFAULT."
)
_MISMATCH = (
    "the driver's library and its kernel module are of different versions. Restart the node, "
    "or reload the module, so that both are of the version that was installed."
)
_UNAVAILABLE: dict[int, str] = {
    **dict.fromkeys((34, 35), _DRIVER_TOO_OLD),
    **dict.fromkeys((3, 100, 101), _NO_GPU),
    46: _HELD,
    **dict.fromkeys((802, 803, 804), _MISMATCH),
}
_FAULTS: dict[int, str] = {
    700: "a kernel read or wrote an address that is not its own",
    701: "a kernel needs more registers or shared memory than it was launched with",
    702: "a kernel ran longer than the driver allows (a GPU that also drives a display has such a limit)",
    710: "a kernel met an assertion",
    714: "a kernel overflowed its stack",
    715: "a kernel met an instruction that it cannot run",
    716: "a kernel read or wrote an address that is not aligned",
    717: "a kernel used an address space that it must not",
    718: "a kernel jumped to an address that holds no code",
    719: "a kernel ended in an error that the driver does not name",
    720: "kernels of one cooperative launch do not fit the GPU at once",
}
_BROKEN: dict[int, str] = {
    214: "the GPU's memory has an error that ECC cannot correct",
    220: "the link between GPUs has an error that cannot be corrected",
    226: "the GPU contained a memory error, and ended what used it",
    304: "the operating system refused a call of the driver",
    709: "the context was destroyed under us",
    721: "the GPU was reset or fell off the bus",
    999: "the driver reported an error that it does not name",
}
STICKY = frozenset({*_FAULTS, *_BROKEN})
"""Codes after which nothing on this context works again: the process has to end."""


def failure_of(code: int, doing: str) -> RuntimeFailure:
    """Return what to raise for error ``code`` of the driver.

    Args:
        code: ``CUresult`` or ``cudaError_t``, not 0.
        doing: what was being done, for the message: ``opening GPU 0``.
    """
    if code == OUT_OF_MEMORY:
        return GpuOutOfMemory(
            f"{doing}: the GPU has not enough free memory. Another process may hold it (nvidia-smi); "
            "else lower --memory-fraction or --kv-cache-memory.",
            code=code,
        )
    if code in _UNAVAILABLE:
        return GpuUnavailable(f"{doing}: {_UNAVAILABLE[code]}", code=code)
    if code in _FAULTS:
        return KernelFault(
            f"{doing}: {_FAULTS[code]} (CUDA error {code}). This is a bug of ours: nothing on the GPU can be "
            "trusted any more, so the process ends and a new one starts. Report it with the log.",
            code=code,
        )
    said = _BROKEN.get(code, "the driver refused it")
    return DeviceFailed(
        f"{doing}: {said} (CUDA error {code}). Look at nvidia-smi and dmesg (Xid) on the node; "
        "drain it if this comes back.",
        code=code,
    )


def ok(result: tuple[Any, ...], doing: str = "calling the driver") -> Any:
    """Unpack what a function of ``cuda.bindings.driver`` returned.

    Raises:
        RuntimeFailure: it returned an error.
    """
    if result[0]:
        raise failure_of(int(result[0]), doing)
    return result[1] if len(result) == 2 else result[1:]


@contextmanager
def translate(doing: str) -> Iterator[None]:
    """Turn errors that CuPy raises inside the block into ours; others pass.

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
    """Return the CUDA error code that an exception of CuPy carries; None of any other exception."""
    kind = type(error)
    if kind.__module__.partition(".")[0] not in ("cupy", "cupy_backends"):
        return None
    if kind.__name__ == "OutOfMemoryError":
        return OUT_OF_MEMORY
    status = getattr(error, "status", None)
    return status if isinstance(status, int) and kind.__name__ in ("CUDARuntimeError", "CUDADriverError") else None
