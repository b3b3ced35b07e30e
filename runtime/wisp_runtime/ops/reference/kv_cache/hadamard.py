"""Walsh-Hadamard transform of each head's channels: orthogonal, and its own inverse.

Of heads whose size is no power of two, runs of the largest power of two that divides it are transformed each:
80 channels are five runs of 16.
"""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array


def run_channels(size: int) -> int:
    """Return the channels of a run of a head of ``size``: the largest power of two that divides it."""
    return size & -size


def rotate(rows: Array) -> Array:
    """Transform ``[…, Dh]`` float32: channel i of a run becomes ``Σ_j (-1)^popcount(i & j) x_j / √run``."""
    run = run_channels(rows.shape[-1])
    x = np.array(rows, np.float32)
    distance = 1
    while distance < run:
        pairs = x.reshape(-1, run // (2 * distance), 2, distance)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        x = np.stack([low + high, low - high], axis=2)
        distance *= 2
    return x.reshape(rows.shape) * np.float32(run**-0.5)
