"""Threads of the CPU backend: a GEMM is split by output tiles, one share a thread.

OpenBLAS's own threads synchronize after every GEMM by spinning; on a machine that does anything else, they
wait for the scheduler each time. These sleep, and only GEMMs worth the waking are split.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from wisp_plan.hardware.host import cpu_limit

_MIN_SECONDS = 120e-6  # waking a thread costs some 30 us
_BYTES_PER_S = 25e9
_MULTIPLICATIONS_PER_S = 40e9


@dataclass(frozen=True, slots=True)
class Work:
    """Cost of a GEMM over output tiles."""

    tiles: int
    multiplications: int
    bytes_read: int

    @property
    def seconds(self) -> float:
        """Estimated time of one thread."""
        return max(self.bytes_read / _BYTES_PER_S, self.multiplications / _MULTIPLICATIONS_PER_S)


def is_worth_splitting(work: Work) -> bool:
    """Return whether a GEMM takes longer than waking a thread is worth."""
    return work.seconds >= _MIN_SECONDS


def bytes_worth(threads: int) -> int:
    """Return the bytes of weights that so many threads share at one row, each with work for its waking."""
    return int(threads * _MIN_SECONDS * _BYTES_PER_S)


class Workers:
    """A fixed number of threads that share one GEMM.

    Args:
        threads: number of threads, the caller's included; at least 2.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "wisp-ops")

    def split(self, work: Work, compute: Callable[[slice], object]) -> None:
        """Call ``compute`` on slices that cover the tiles, in parallel if the work is worth it."""
        shares = min(self.threads, int(work.seconds / _MIN_SECONDS) + 1, work.tiles)
        bounds = [work.tiles * share // shares for share in range(shares + 1)]
        slices = [slice(first, last) for first, last in pairwise(bounds)]
        others = [self._pool.submit(compute, tiles) for tiles in slices[1:]]
        compute(slices[0])
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def available_threads() -> int:
    """Return how many CPUs this process may use; beyond its quota all threads would be stopped together."""
    cpus = len(os.sched_getaffinity(0))
    limit = cpu_limit()
    return cpus if limit is None else max(1, min(cpus, math.ceil(limit)))
