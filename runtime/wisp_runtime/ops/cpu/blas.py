"""NumPy's OpenBLAS: keep it in the calling thread, and query which kernels it chose for this CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

_AVX512_CORES = frozenset({b"SkylakeX", b"Cooperlake", b"SapphireRapids"})


def keep_blas_single_threaded() -> bool:
    """Keep OpenBLAS in the calling thread; return whether it is there."""
    function = _function("set_num_threads")
    if function is not None:
        function(1)
    return function is not None


def has_small_gemms() -> bool:
    """Return whether OpenBLAS has kernels for small GEMMs, as it has for AVX-512.

    With them two rows times a tile of weights run at the speed of reading the tile; one row, which is a
    vector to NumPy, takes 1.4 times as long. Without them two rows take twice as long as one.
    """
    function = _function("get_corename")
    if function is None:
        return False
    function.restype = ctypes.c_char_p
    return function() in _AVX512_CORES


def _function(name: str) -> Any:
    """Return a function of the OpenBLAS that came with NumPy, or None."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for library in folder.glob("libscipy_openblas*"):
        handle = ctypes.CDLL(str(library))
        for full in (f"scipy_openblas_{name}64_", f"scipy_openblas_{name}"):
            if hasattr(handle, full):
                return getattr(handle, full)
    return None
