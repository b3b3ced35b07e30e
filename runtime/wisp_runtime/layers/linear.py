"""A linear map with its optional bias."""

from __future__ import annotations

from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.weights.arena import Weights


class Linear:
    """``y = x W^T + b``.

    Args:
        ops: the device.
        weights: weights with ``name.weight`` ``[out, in]``, and ``name.bias`` ``[out]`` if there is one.
        name: name of the linear map.
    """

    def __init__(self, ops: Ops, weights: Weights, name: str) -> None:
        self._ops = ops
        self._weight = weights[f"{name}.weight"]
        self._bias = weights.get(f"{name}.bias")

    def __call__(self, x: Array) -> Array:
        """Map ``[N, in]`` to ``[N, out]``."""
        return self._ops.linear(x, self._weight, self._bias)
