"""Round a decode step up to one of a few fixed sizes, so that a graph captured once serves many steps.

Pure. The rows that are added (padding) belong to no sequence: they read and write nothing of the cache.
"""

from __future__ import annotations

from bisect import bisect_left

_SMALL = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
_STEP = 64  # between buckets beyond the small ones


def buckets(max_rows: int) -> tuple[int, ...]:
    """Return the sizes that decode steps of 1 to ``max_rows`` sequences are rounded up to, ascending."""
    sizes = (*_SMALL, *range(_SMALL[-1] + _STEP, max_rows, _STEP))
    return (*(size for size in sizes if size < max_rows), max_rows)


def bucket_for(rows: int, sizes: tuple[int, ...]) -> int:
    """Return the smallest of ``sizes`` that holds ``rows``; the largest must."""
    return sizes[bisect_left(sizes, rows)]
