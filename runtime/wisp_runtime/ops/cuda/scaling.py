"""Scaled results, and activations other than gated SiLU, of a GPU, which has no kernels for them.

A start refuses models that need one before a weight is read (:mod:`wisp_plan.hardware.kernel_layers`).
"""

from __future__ import annotations

from typing import NoReturn

from wisp_runtime.batch import Array
from wisp_runtime.errors import KernelsMissing
from wisp_runtime.ops.protocol.gemm import Matrix


class Scaling:
    """Scaling and those activations, as :class:`.ops.CudaOps` has them."""

    def scale(self, x: Array, factor: float) -> Array:  # noqa: ARG002 (no kernel reads them)
        """Refuse."""
        _refuse("scaled embeddings, results or logits")

    def add_scaled(
        self,
        x: Array,  # noqa: ARG002
        residual: Array,  # noqa: ARG002
        factor: float,  # noqa: ARG002
        rows: Array | None = None,  # noqa: ARG002
    ) -> None:
        """Refuse."""
        _refuse("mixers in parallel")

    def scaled_swiglu(
        self,
        x: Array,  # noqa: ARG002
        weight: Matrix,  # noqa: ARG002
        bias: Array | None,  # noqa: ARG002
        gate_scale: float,  # noqa: ARG002
    ) -> Array:
        """Refuse."""
        _refuse("scaled gates")

    def geglu(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:  # noqa: ARG002
        """Refuse."""
        _refuse("gated GELU")

    def relu2(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:  # noqa: ARG002
        """Refuse."""
        _refuse("ungated activations")


def _refuse(missing: str) -> NoReturn:
    raise KernelsMissing(f"no GPU kernels for {missing}. Serve the model with --device cpu.")
