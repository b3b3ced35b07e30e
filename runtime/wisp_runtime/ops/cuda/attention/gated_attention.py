"""Attention with an output gate on a GPU: there are no kernels for it.

A start refuses a model with such layers before (:mod:`wisp_plan.hardware.kernel_layers`).
"""

from __future__ import annotations

from wisp_runtime.batch import Array, Batch
from wisp_runtime.errors import KernelsMissing
from wisp_runtime.ops.cuda.gemm.linear import Matrix
from wisp_runtime.ops.protocol.attention import UNQUANTIZED, HeadLayout, KvEncoding, RopeTable


class GatedAttention:
    """Attention with an output gate, as :class:`.ops.CudaOps` has it."""

    def project_gated_qkv(
        self,
        x: Array,  # noqa: ARG002 (no kernel reads them)
        weight: Matrix,  # noqa: ARG002
        bias: Array | None,  # noqa: ARG002
        heads: HeadLayout,  # noqa: ARG002
        rope: RopeTable,  # noqa: ARG002
        batch: Batch,  # noqa: ARG002
        keys: Array,  # noqa: ARG002
        values: Array,  # noqa: ARG002
        encoding: KvEncoding = UNQUANTIZED,  # noqa: ARG002
    ) -> tuple[Array, Array]:
        """Refuse."""
        raise KernelsMissing("no GPU kernels for attention with an output gate. Serve it with --device cpu.")

    def gate_heads(self, mixed: Array, gate: Array, rows: Array | None = None) -> Array:  # noqa: ARG002
        """Refuse."""
        raise KernelsMissing("no GPU kernels for attention with an output gate. Serve it with --device cpu.")
