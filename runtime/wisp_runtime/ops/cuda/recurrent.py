"""Recurrent mixers of a GPU."""

from __future__ import annotations

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.errors import KernelsMissing
from wisp_runtime.ops.cuda.gemm.linear import Matrix
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights, MambaWeights


class RecurrentMixers:
    """Recurrent mixers, as :class:`.ops.CudaOps` has them."""

    def project_delta_net(self, x: Array, qkvz: Matrix, gates: Matrix) -> tuple[Array, Array]:  # noqa: ARG002
        """Refuse, as :meth:`delta_net` does."""
        raise KernelsMissing("no GPU kernels for Gated DeltaNet. Serve the model with --device cpu.")

    def delta_net(
        self,
        projected: Array,  # noqa: ARG002 (no kernel reads them)
        gates: Array,  # noqa: ARG002
        weights: DeltaNetWeights,  # noqa: ARG002
        spec: DeltaNetSpec,  # noqa: ARG002
        batch: Batch,  # noqa: ARG002
        states: Array,  # noqa: ARG002
        inputs: Array,  # noqa: ARG002
        rows: Array | None = None,  # noqa: ARG002
    ) -> Array:
        """Refuse: a start refuses such a model before (:mod:`wisp_plan.hardware.kernel_layers`)."""
        raise KernelsMissing("no GPU kernels for Gated DeltaNet. Serve the model with --device cpu.")

    def project_mamba(self, x: Array, weight: Matrix, bias: Array | None) -> Array:  # noqa: ARG002
        """Refuse, as :meth:`mamba` does."""
        raise KernelsMissing("no GPU kernels for Mamba-2. Serve the model with --device cpu.")

    def mamba(
        self,
        projected: Array,  # noqa: ARG002
        weights: MambaWeights,  # noqa: ARG002
        spec: MambaSpec,  # noqa: ARG002
        batch: Batch,  # noqa: ARG002
        states: Array,  # noqa: ARG002
        inputs: Array,  # noqa: ARG002
        rows: Array | None = None,  # noqa: ARG002
    ) -> Array:
        """Refuse: a start refuses such a model before (:mod:`wisp_plan.hardware.kernel_layers`)."""
        raise KernelsMissing("no GPU kernels for Mamba-2. Serve the model with --device cpu.")
