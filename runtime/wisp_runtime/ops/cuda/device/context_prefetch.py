"""Prefetch of a GPU's context in a thread while Python imports, and queries about its memory; without CuPy.

Both of the driver's libraries are called through ctypes, which lets other threads run meanwhile. Nothing here
fails: where there is no GPU the result is None, and :mod:`.gpu` raises the reason when it opens the GPU.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from typing import Any

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED
_MAX_PROCESSES = 64
_UNKNOWN = (1 << 64) - 1


class ContextPrefetch:
    """A GPU's primary context, which CuPy will use too, in the making since this object was made.

    Args:
        index: number among the GPUs that this process sees.
    """

    def __init__(self, index: int = 0) -> None:
        self._index = index
        self._capability: tuple[int, int] | None = None
        self._is_looked_up = threading.Event()
        threading.Thread(target=self._make, name="wisp-context", daemon=True).start()

    @property
    def is_missing(self) -> bool:
        """Whether the look-up has ended without such a GPU."""
        return self._is_looked_up.is_set() and self._capability is None

    def wait(self) -> tuple[int, int] | None:
        """Wait for the look-up; return the compute capability, None if there is no such GPU."""
        self._is_looked_up.wait()
        return self._capability

    def _make(self) -> None:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        try:
            cuda = _library("libcuda.so.1", "cuInit", 0)
            self._capability = _capability(cuda, device, self._index)
        finally:
            self._is_looked_up.set()
        if self._capability is not None:
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            management_library()


def _capability(cuda: Any, device: ctypes.c_int, index: int) -> tuple[int, int] | None:
    """Look a GPU up, and return its compute capability."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    if cuda is None or cuda.cuDeviceGet(ctypes.byref(device), index):
        return None
    for number, attribute in ((major, _MAJOR), (minor, _MINOR)):
        if cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device):
            return None
    return major.value, minor.value


def process_bytes(index: int = 0) -> int | None:
    """Return what this process holds of GPU ``index``, its context included; None if that is unknown.

    In a container the driver may list us under a number that is not ours; a process alone on the GPU is us.
    """
    library, handle = management_library(), _handle(index)
    if library is None or handle is None:
        return None
    listed = held_by_processes(library, handle)
    own = [held for pid, held in listed if pid == os.getpid()] or [held for _, held in listed]
    return own[0] if len(own) == 1 else None


def co_running_processes(index: int = 0) -> int:
    """Return the number of other processes whose kernels may run at once with ours on GPU ``index``.

    Those are the other clients of the MPS server; 0 without MPS, when processes take turns. 1 if the driver
    does not list clients: there may be some.
    """
    cuda, library = _library("libcuda.so.1", "cuInit", 0), management_library()
    device, is_enabled = ctypes.c_int(), ctypes.c_int()
    if cuda is None or cuda.cuDeviceGet(ctypes.byref(device), index):
        return 0
    if cuda.cuDeviceGetAttribute(ctypes.byref(is_enabled), _MPS_ENABLED, device) or not is_enabled.value:
        return 0
    handle = _handle(index)
    if library is None or handle is None:
        return 1
    clients = held_by_processes(library, handle, "nvmlDeviceGetMPSComputeRunningProcesses_v3")
    return max(len(clients) - 1, 0) if clients else 1


def held_by_processes(
    library: Any, handle: ctypes.c_void_p, query: str = "nvmlDeviceGetComputeRunningProcesses_v3"
) -> list[tuple[int, int | None]]:
    """List the processes on a GPU: number, and bytes held, None where that is unknown. Numbers may repeat.

    Args:
        library: result of :func:`management_library`.
        handle: handle of the GPU in the library.
        query: function of the library.
    """
    count, listed = ctypes.c_uint(_MAX_PROCESSES), (_Process * _MAX_PROCESSES)()
    if getattr(library, query)(handle, ctypes.byref(count), listed):
        return []
    processes = listed[: count.value]
    return [(process.pid, None if process.used == _UNKNOWN else process.used) for process in processes]


class _Process(ctypes.Structure):  # nvmlProcessInfo_v2_t, which the _v3 functions fill
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@cache
def _library(name: str, initialise: str, *arguments: int) -> Any:
    """Load and initialise a library of the driver, once; None if there is none or it refuses."""
    try:
        library = ctypes.CDLL(name)
        refuses = getattr(library, initialise)(*arguments)
    except (OSError, AttributeError):  # it is absent, or no driver's
        return None
    return None if refuses else library


def management_library() -> Any:
    """Return NVIDIA's management library, initialised; None where there is no driver."""
    return _library("libnvidia-ml.so.1", "nvmlInit_v2")


@cache
def _handle(index: int) -> ctypes.c_void_p | None:
    """Return the management library's handle of a GPU; it counts GPUs otherwise, so go by the UUID."""
    cuda, library = _library("libcuda.so.1", "cuInit", 0), management_library()
    device, raw, handle = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.c_void_p()
    if cuda is None or library is None or cuda.cuDeviceGet(ctypes.byref(device), index):
        return None
    if cuda.cuDeviceGetUuid_v2(ctypes.byref(raw), device):
        return None
    digits = bytes(raw).hex()
    parts = "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
    for kind in ("GPU", "MIG"):
        if not library.nvmlDeviceGetHandleByUUID(f"{kind}-{parts}".encode(), ctypes.byref(handle)):
            return handle
    return None
