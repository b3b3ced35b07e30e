"""Root-mean-square normalisation, fused with the residual sum before it."""

from __future__ import annotations

from wisp_plan.spec.layer import NormSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.weights.arena import Weights


class RMSNorm:
    """Normalise rows.

    Args:
        ops: the device.
        weights: weights with ``name.weight`` ``[D]``.
        name: name of the norm.
        spec: its arithmetic.
    """

    def __init__(self, ops: Ops, weights: Weights, name: str, spec: NormSpec) -> None:
        self._ops = ops
        self._weight = weights[f"{name}.weight"]
        self._eps, self._is_zero_centred = spec.eps, spec.is_zero_centred

    def __call__(self, x: Array | None, residual: Array, rows: Array | None = None) -> Array:
        """Add ``x`` into ``residual`` ``[N, D]`` in place, and return the norm of the sum.

        Args:
            x: ``[N, D]`` of the layer before, or with ``rows`` ``[R, D]``; None, without rows, adds nothing.
            rows: ``[R]``, the rows of ``residual`` that are wanted; None wants all.
        """
        eps, is_zero_centred = self._eps, self._is_zero_centred
        if x is None:
            return self._ops.rmsnorm(residual, self._weight, eps=eps, is_zero_centred=is_zero_centred)
        return self._ops.add_rmsnorm(
            x, residual, self._weight, eps=eps, rows=rows, is_zero_centred=is_zero_centred
        )
