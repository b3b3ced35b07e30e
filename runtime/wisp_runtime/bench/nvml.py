"""GPU name, driver version and memory use, from NVIDIA's management library.

Through ctypes, without a package and without a CUDA context, so a query changes nothing. Every function
returns None where there is no driver or the driver does not report the value.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

from wisp_runtime.ops.cuda.device.context_prefetch import held_by_processes, management_library

_TEXT_BYTES = 96


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU: its name and its driver's version."""

    name: str
    driver: str


class _Memory(ctypes.Structure):  # nvmlMemory_v2_t
    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def card(index: int = 0) -> Card | None:
    """Return GPU ``index`` of this machine (the driver's numbering, not ``CUDA_VISIBLE_DEVICES``'s)."""
    library, handle = management_library(), _handle(index)
    if library is None or handle is None:
        return None
    name, driver = ctypes.create_string_buffer(_TEXT_BYTES), ctypes.create_string_buffer(_TEXT_BYTES)
    if library.nvmlDeviceGetName(handle, name, _TEXT_BYTES):
        return None
    if library.nvmlSystemGetDriverVersion(driver, _TEXT_BYTES):
        return None
    return Card(name.value.decode(), driver.value.decode())


def used_bytes(index: int = 0) -> int | None:
    """Return the memory of GPU ``index`` in use by all processes, without the driver's reserve."""
    library, handle = management_library(), _handle(index)
    if library is None or handle is None:
        return None
    memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
    if library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)):
        return None
    return int(memory.used)


def process_bytes(pid: int, index: int = 0) -> int | None:
    """Return the memory of GPU ``index`` that process ``pid`` holds; None where a container hides it."""
    library, handle = management_library(), _handle(index)
    if library is None or handle is None:
        return None
    listed = held_by_processes(library, handle)
    return next((held for one, held in listed if one == pid and held is not None), None)


@lru_cache(maxsize=8)
def _handle(index: int) -> ctypes.c_void_p | None:
    library, handle = management_library(), ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)):
        return None
    return handle
