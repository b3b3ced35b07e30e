"""Functions between the projections in and out of a feed-forward block, in NumPy."""

from __future__ import annotations

import numpy as np

from wisp_plan.spec.ffn import Activation
from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.dense import relu2, sigmoid, silu_mul

CLAMP = 7.0
"""Bound of gate and up of ``clamped_swiglu``."""
SIGMOID_SLOPE = 1.702
"""Factor of the gate inside its sigmoid."""


def activate(inner: Array, activation: Activation) -> Array:
    """Apply an activation (:data:`wisp_plan.spec.ffn.Activation`) to the result of the projection in.

    Args:
        inner: ``[N, 2 F]``, gate then up; ``[N, F]`` of ``relu2``.

    Returns:
        ``[N, F]``.
    """
    if activation == "silu":
        return silu_mul(inner)
    if activation == "relu2":
        return relu2(inner)
    half = inner.shape[1] // 2
    gate = np.minimum(inner[:, :half], np.float32(CLAMP))
    up = np.clip(inner[:, half:], np.float32(-CLAMP), np.float32(CLAMP))
    return (up + np.float32(1)) * (gate * sigmoid(np.float32(SIGMOID_SLOPE) * gate))
