"""Random weights that are the same on every device: a number depends on its index and a key alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.philox import philox4x32

NUMBERS_A_COUNTER = 8


def random_scale(deviation: float) -> np.float32:
    """Return the factor that makes 16-bit signed words uniform with this standard deviation."""
    return np.float32(deviation * 3**0.5 / 32768)


def random_values(first: int, count: int, key: int, *, mean: float, deviation: float) -> Array:
    """Return numbers ``first:first + count`` of an endless sequence: ``[count]`` float32, rounded to bf16.

    Number i is the signed half word ``i % 8`` (of each word the low half first) of Philox with counter
    ``(i // 8, 0, 0, 0)`` and ``key``, scaled, plus ``mean``, rounded to bf16 at last.
    """
    groups = np.arange(first // NUMBERS_A_COUNTER, -(-(first + count) // NUMBERS_A_COUNTER))
    counters = np.zeros((len(groups), 4), np.uint32)
    counters[:, 0] = groups
    words = philox4x32(counters, (key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF))
    halves = words.view(np.int16).reshape(-1)[first % NUMBERS_A_COUNTER :][:count]
    values = halves.astype(np.float32) * random_scale(deviation) + np.float32(mean)
    rounded: Array = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    return rounded
