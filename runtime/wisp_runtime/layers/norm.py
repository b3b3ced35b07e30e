"""Root-mean-square normalisation, fused with the residual sum before it."""

from __future__ import annotations

from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.weights.arena import Weights


class RMSNorm:
    """Normalise rows.

    Args:
        ops: the device.
        weights: weights with ``name.weight`` ``[D]``.
        name: name of the norm.
        eps: added to the mean square.
    """

    def __init__(self, ops: Ops, weights: Weights, name: str, eps: float) -> None:
        self._ops = ops
        self._weight = weights[f"{name}.weight"]
        self._eps = eps

    def __call__(self, x: Array | None, residual: Array, rows: Array | None = None) -> Array:
        """Add ``x`` into ``residual`` ``[N, D]`` in place, and return the norm of the sum.

        Args:
            x: ``[N, D]`` of the layer before, or with ``rows`` ``[R, D]``; None, without rows, adds nothing.
            rows: ``[R]``, the rows of ``residual`` that are wanted; None wants all.
        """
        if x is None:
            return self._ops.rmsnorm(residual, self._weight, eps=self._eps)
        return self._ops.add_rmsnorm(x, residual, self._weight, eps=self._eps, rows=rows)
