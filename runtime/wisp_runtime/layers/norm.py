"""Root-mean-square normalisation, alone or fused with the residual sum before it."""

from __future__ import annotations

from wisp_runtime.batch import Array
from wisp_runtime.memory.weights import Weights
from wisp_runtime.ops.backend import Ops


class RMSNorm:
    """Normalise rows.

    Args:
        ops: the device.
        weights: holds ``name.weight`` ``[D]``.
        name: of the norm.
        eps: added to the mean square.
    """

    def __init__(self, ops: Ops, weights: Weights, name: str, eps: float) -> None:
        self._ops = ops
        self._weight = weights[f"{name}.weight"]
        self._eps = eps

    def __call__(self, x: Array) -> Array:
        """Return the norm of ``x`` ``[..., D]``."""
        return self._ops.rmsnorm(x, self._weight, eps=self._eps)

    def add(self, x: Array, residual: Array) -> Array:
        """Add ``x`` into ``residual`` in place, and return the norm of the sum."""
        return self._ops.add_rmsnorm(x, residual, self._weight, eps=self._eps)
