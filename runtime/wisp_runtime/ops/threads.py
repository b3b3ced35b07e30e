"""Threads of the CPU backend: whole matrix products are cut by output tiles, one part a thread.

OpenBLAS's own threads meet after every product by spinning; on a machine that does anything else beside,
they wait for the scheduler each time. Ours sleep, and only products worth the waking are cut.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

_MIN_SECONDS = 120e-6  # waking a thread costs some 30 us
_BYTES_PER_S = 25e9
_MULTIPLICATIONS_PER_S = 40e9


class Workers:
    """A fixed number of threads that compute parts of one product.

    Args:
        threads: how many compute, the caller's included; at least 1.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "wisp-ops") if threads > 1 else None

    def split(
        self, compute: Callable[[int, int], None], tiles: int, *, multiplications: int, bytes_read: int
    ) -> None:
        """Call ``compute(first, last)`` over ``0:tiles``, in parallel if the work is worth it."""
        seconds = max(bytes_read / _BYTES_PER_S, multiplications / _MULTIPLICATIONS_PER_S)
        parts = min(self.threads, int(seconds / _MIN_SECONDS) + 1, tiles)
        if self._pool is None or parts < 2:
            compute(0, tiles)
            return
        cuts = [tiles * part // parts for part in range(parts + 1)]
        others = [self._pool.submit(compute, cuts[i], cuts[i + 1]) for i in range(1, parts)]
        compute(cuts[0], cuts[1])
        for other in others:
            other.result()


def available_threads() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def keep_blas_single_threaded() -> bool:
    """Tell NumPy's OpenBLAS to stay in the calling thread; return whether it was found."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    found = False
    for library in folder.glob("libscipy_openblas*"):
        handle = ctypes.CDLL(str(library))
        for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"):
            if hasattr(handle, name):
                getattr(handle, name)(1)
                found = True
    return found
