"""GEMMs of a device: plain, with SwiGLU, and float32 logits."""

from __future__ import annotations

from typing import Any, Protocol

from wisp_runtime.batch import Array

Matrix = Any  # a weight matrix [out, in] as the device stores it; only its ops read the storage


class GemmOps(Protocol):
    """GEMMs with weights as :meth:`.weights.WeightOps.matrix` made them."""

    def linear(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:
        """Return ``x W^T + bias``: ``[N, in]`` to ``[N, out]``."""
        ...

    def swiglu(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:
        """Return ``silu(gate) * up`` of a matrix of gate above up: ``[N, D]`` to ``[N, F]``."""
        ...

    def scaled_swiglu(self, x: Array, weight: Matrix, bias: Array | None, gate_scale: float) -> Array:
        """Return ``silu(gate_scale * gate) * up``, as :meth:`swiglu` does."""
        ...

    def geglu(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:
        """Return ``gelu(gate) * up``, as :meth:`swiglu` does; GELU with the approximation by tanh."""
        ...

    def relu2(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:
        """Return ``max(x W^T + bias, 0) ** 2``: ``[N, D]`` to ``[N, F]``."""
        ...

    def logits(self, x: Array, weight: Matrix) -> Array:
        """Return ``x W^T`` in float32: ``[R, D]`` to ``[R, V]``."""
        ...
