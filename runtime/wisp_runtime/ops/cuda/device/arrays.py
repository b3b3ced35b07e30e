"""Arrays on the GPU; CuPy holds bf16 as the dtype of ml_dtypes.

Without compiling anything CuPy allocates, slices, reshapes and views them (bf16 as uint16 and back), and
copies contiguous ones to and from the host. Arithmetic, ``fill``, ``astype`` and copies of strided views make
it compile a kernel with NVRTC, so nothing that serves uses them: our own kernels compute.
"""

from __future__ import annotations

from typing import Any

import cupy as cp
import ml_dtypes
import numpy as np

from wisp_runtime.batch import Array

BF16 = np.dtype(ml_dtypes.bfloat16)  # which gives NumPy the name "bfloat16"
_NAN_BYTE = 0xFF
"""Every bf16 and float32 made of this byte is NaN; every signed integer is -1."""


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Allocate an array on the GPU; its contents are undefined."""
    return cp.empty(shape, dtype)


def full_nan(shape: tuple[int, ...], dtype: Any) -> Array:
    """Allocate an array of NaN (bf16, float32), or of -1 (integers): for memory that must not be read."""
    array = cp.empty(shape, dtype)
    array.data.memset_async(_NAN_BYTE, array.nbytes)
    return array


def zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """Allocate an array of zeros."""
    array = cp.empty(shape, dtype)
    array.data.memset_async(0, array.nbytes)
    return array


def to_device(array: Any, dtype: Any = None) -> Array:
    """Copy a host array to the GPU, converted to ``dtype`` on the host (rounded to nearest even for bf16)."""
    host = np.ascontiguousarray(array, dtype=dtype)
    out = cp.empty(host.shape, host.dtype)
    out.set(host)
    return out


def to_host(array: Array) -> Any:
    """Copy an array of the GPU to the host, any strides, same dtype; waits for the current stream.

    Rows are gathered here: ``asnumpy`` of a strided array makes another stream current than ``use`` did.
    """
    if not array.flags.c_contiguous:
        rows = array.view(np.uint16) if array.dtype == BF16 else array
        array = cp.ascontiguousarray(rows).view(array.dtype)
    return cp.asnumpy(array)


def to_host_float32(array: Array) -> Any:
    """Copy an array of the GPU to the host as float32; waits for the current stream."""
    return to_host(array).astype(np.float32)
