"""Mamba-2 of a GPU, as :class:`.ops.CudaOps` has it: convolution, selective scan, gate and norm."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cuda.attention.batch_mix import BatchMix
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.gemm.linear import Linear, Matrix
from wisp_runtime.ops.cuda.recurrent.conv import CausalConv, Factors
from wisp_runtime.ops.cuda.recurrent.mamba_norm import MambaNorm
from wisp_runtime.ops.cuda.recurrent.selective_scan import ScanInputs, SelectiveScan
from wisp_runtime.ops.protocol.recurrent import MambaWeights, RecurrentStep


class MambaMixers:
    """Mamba-2. Kernels are loaded for models that have some.

    Attributes:
        MAMBA_KERNELS: kernels of these mixers.
    """

    MAMBA_KERNELS: ClassVar = ("causal_conv", "mamba_decode", "mamba_scan", "mamba_norm")
    gpu: Gpu
    _linear: Linear
    _mamba: tuple[CausalConv, SelectiveScan, MambaNorm] | None = None

    @abstractmethod
    def _mix_of(self, batch: Batch) -> BatchMix:
        """Return the kinds of sequences in a batch."""

    def require_mamba(self, spec: ModelSpec) -> None:
        """Look up the kernels of a model's Mamba-2 mixers, before any weight is read.

        Raises:
            KernelsMissing: one of them is not compiled.
        """
        if spec.mixers(MambaSpec):
            self.gpu.kernels.require(*self.MAMBA_KERNELS)

    def load_mamba(self, spec: ModelSpec) -> None:
        """Load the kernels of a model's Mamba-2 mixers."""
        if spec.mixers(MambaSpec) and self._mamba is None:
            self._mamba = CausalConv(self.gpu), SelectiveScan(self.gpu), MambaNorm(self.gpu)

    def project_mamba(self, x: Array, weight: Matrix, bias: Array | None) -> Array:
        """See :meth:`.linear.Linear.__call__`."""
        return self._linear(x, weight, bias, out_name="projected")

    def mamba(
        self,
        projected: Array,
        weights: MambaWeights,
        spec: MambaSpec,
        step: RecurrentStep,
    ) -> Array:
        """Launch a convolution, the scan of each kind of sequences, and the norm."""
        assert self._mamba is not None, "the model was reserved without Mamba-2"
        (conv, scan, norm), mix = self._mamba, self._mix_of(step.batch)
        end = spec.inner + spec.conv_size
        z, mixed, steps = projected[:, : spec.inner], projected[:, spec.inner : end], projected[:, end:]
        xbc = conv(
            mixed,
            weights.conv,
            weights.conv_bias,
            step.batch,
            step.inputs,
            has_prefills=mix.has_prefills,
            factors=Factors(spec.scales[1:4], (spec.inner, spec.inner + spec.group_size)),
            out_name="convolved",
        )
        given = ScanInputs(xbc, steps, weights, spec, step.batch)
        y = self.gpu.workspace.array("recurrent", (len(projected), spec.inner), BF16)
        if mix.has_decodes:
            scan.decode(given, step.states, y)
        if mix.has_prefills:
            scan.prefill(given, step.states, y, min_tokens=2 if mix.has_decodes else 1)
        return norm(y, z, weights.norm, spec, step.rows, out_name="gated")
