"""Threads of the CPU backend: whole matrix products are cut by output tiles, one part a thread.

OpenBLAS's own threads meet after every product by spinning; on a machine that does anything else beside,
they wait for the scheduler each time. Ours sleep, and only products worth the waking are cut.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

_MIN_SECONDS = 120e-6  # waking a thread costs some 30 us
_BYTES_PER_S = 25e9
_MULTIPLICATIONS_PER_S = 40e9


@dataclass(frozen=True, slots=True)
class Work:
    """A product over output tiles, and what it costs."""

    tiles: int
    multiplications: int
    bytes_read: int

    @property
    def seconds(self) -> float:
        """About how long one thread takes."""
        return max(self.bytes_read / _BYTES_PER_S, self.multiplications / _MULTIPLICATIONS_PER_S)


class Workers:
    """A fixed number of threads that compute parts of one product.

    Args:
        threads: how many compute, the caller's included; at least 2.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "wisp-ops")

    def split(self, work: Work, compute: Callable[[slice], object]) -> None:
        """Call ``compute`` on slices that cover the tiles, in parallel if the work is worth it."""
        parts = min(self.threads, int(work.seconds / _MIN_SECONDS) + 1, work.tiles)
        cuts = [work.tiles * part // parts for part in range(parts + 1)]
        slices = [slice(first, last) for first, last in pairwise(cuts)]
        others = [self._pool.submit(compute, one) for one in slices[1:]]
        compute(slices[0])
        for other in others:
            other.result()


def available_threads() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0))
