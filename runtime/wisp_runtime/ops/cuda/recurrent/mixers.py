"""Recurrent mixers of a GPU, as :class:`.ops.CudaOps` has them: convolution, recurrence, gated norm."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.errors import KernelsMissing
from wisp_runtime.ops.cuda.attention.batch_mix import BatchMix
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.gemm.linear import Linear, Matrix
from wisp_runtime.ops.cuda.recurrent import delta_rule
from wisp_runtime.ops.cuda.recurrent.conv import CausalConv
from wisp_runtime.ops.cuda.recurrent.delta_rule import DeltaInputs, DeltaRule
from wisp_runtime.ops.cuda.recurrent.gated_norm import GatedNorm
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights, MambaWeights


class RecurrentMixers:
    """Recurrent mixers. Kernels are loaded for models that have some.

    Attributes:
        RECURRENT_KERNELS: kernels of these mixers.
    """

    RECURRENT_KERNELS: ClassVar = ("causal_conv", *delta_rule.KERNELS, "gated_norm")
    gpu: Gpu
    _linear: Linear
    _kernels: tuple[CausalConv, DeltaRule, GatedNorm] | None = None

    @abstractmethod
    def _mix_of(self, batch: Batch) -> BatchMix:
        """Return the kinds of sequences in a batch."""

    def require_recurrent(self, spec: ModelSpec) -> None:
        """Look up the kernels of a model's recurrent mixers, before any weight is read.

        Raises:
            KernelsMissing: one of them is not compiled.
        """
        if spec.mixers(DeltaNetSpec):
            self.gpu.kernels.require(*self.RECURRENT_KERNELS)

    def load_recurrent(self, spec: ModelSpec) -> None:
        """Load the kernels of a model's recurrent mixers."""
        if spec.mixers(DeltaNetSpec) and self._kernels is None:
            self._kernels = CausalConv(self.gpu), DeltaRule(self.gpu), GatedNorm(self.gpu)

    def project_delta_net(self, x: Array, qkvz: Matrix, gates: Matrix) -> tuple[Array, Array]:
        """Launch both GEMMs; see :meth:`.linear.Linear.__call__`."""
        projected = self._linear(x, qkvz, None, out_name="projected")
        return projected, self._linear(x, gates, None, out_name="gates")

    def delta_net(
        self,
        projected: Array,
        gates: Array,
        weights: DeltaNetWeights,
        spec: DeltaNetSpec,
        batch: Batch,
        states: Array,
        inputs: Array,
        rows: Array | None = None,
    ) -> Array:
        """Launch a convolution, then of decode steps one kernel; else those of each kind of sequences."""
        assert self._kernels is not None, "the model was reserved without recurrent mixers"
        (conv, rule, norm), mix = self._kernels, self._mix_of(batch)
        convolved = conv(
            projected,
            weights.conv,
            None,
            batch,
            inputs,
            has_prefills=mix.has_prefills,
            out_name="convolved",
        )
        z = projected[:, spec.conv_size :]
        given = DeltaInputs(convolved, gates, z, weights, spec, batch)
        is_decode = rows is None and not mix.has_prefills
        shape = len(projected), spec.value_heads * spec.value_size
        out = self.gpu.workspace.array("gated" if is_decode else "recurrent", shape, BF16)
        if mix.has_decodes:
            rule.decode(given, states, out, has_norm=is_decode)
        if is_decode:
            return out
        if mix.has_prefills:
            rule.prefill(given, states, out, min_tokens=2 if mix.has_decodes else 1)
        return norm(out, z, weights.norm, rows, eps=weights.eps, out_name="gated")

    def project_mamba(self, x: Array, weight: Matrix, bias: Array | None) -> Array:  # noqa: ARG002
        """Refuse, as :meth:`mamba` does."""
        raise KernelsMissing("no GPU kernels for Mamba-2. Serve the model with --device cpu.")

    def mamba(
        self,
        projected: Array,  # noqa: ARG002 (no kernel reads them)
        weights: MambaWeights,  # noqa: ARG002
        spec: MambaSpec,  # noqa: ARG002
        batch: Batch,  # noqa: ARG002
        states: Array,  # noqa: ARG002
        inputs: Array,  # noqa: ARG002
        rows: Array | None = None,  # noqa: ARG002
    ) -> Array:
        """Refuse: a start refuses such a model before (:mod:`wisp_plan.hardware.kernel_layers`)."""
        raise KernelsMissing("no GPU kernels for Mamba-2. Serve the model with --device cpu.")
