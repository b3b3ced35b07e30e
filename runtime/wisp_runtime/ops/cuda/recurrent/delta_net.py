"""Gated DeltaNet of a GPU, as :class:`.ops.CudaOps` has it: convolution, recurrence, gated norm."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cuda.attention.batch_mix import BatchMix
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.gemm.linear import Linear, Matrix
from wisp_runtime.ops.cuda.recurrent import delta_prefill
from wisp_runtime.ops.cuda.recurrent.conv import CausalConv
from wisp_runtime.ops.cuda.recurrent.delta_decode import DecodeInputs, DeltaDecode, GateRows
from wisp_runtime.ops.cuda.recurrent.delta_prefill import DeltaInputs, DeltaPrefill
from wisp_runtime.ops.cuda.recurrent.gated_norm import GatedNorm
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights, RecurrentStep


class DeltaNetMixers:
    """Gated DeltaNet. Kernels are loaded for models that have some.

    Attributes:
        DELTA_NET_KERNELS: kernels of Gated DeltaNet.
    """

    DELTA_NET_KERNELS: ClassVar = ("causal_conv", "delta_decode", *delta_prefill.KERNELS, "gated_norm")
    gpu: Gpu
    _linear: Linear
    _kernels: tuple[CausalConv, DeltaDecode, DeltaPrefill, GatedNorm] | None = None

    @abstractmethod
    def _mix_of(self, batch: Batch) -> BatchMix:
        """Return the kinds of sequences in a batch."""

    def require_delta_net(self, spec: ModelSpec) -> None:
        """Look up the kernels of a model's Gated DeltaNet, before any weight is read.

        Raises:
            KernelsMissing: one of them is not compiled.
        """
        if spec.mixers(DeltaNetSpec):
            self.gpu.kernels.require(*self.DELTA_NET_KERNELS)

    def load_delta_net(self, spec: ModelSpec) -> None:
        """Load the kernels of a model's Gated DeltaNet."""
        if spec.mixers(DeltaNetSpec) and self._kernels is None:
            gpu = self.gpu
            self._kernels = CausalConv(gpu), DeltaDecode(gpu), DeltaPrefill(gpu), GatedNorm(gpu)

    def project_delta_net(
        self, x: Array, qkvz: Matrix, gates: Matrix, batch: Batch
    ) -> tuple[Array, Array | GateRows]:
        """Launch both GEMMs; of decode steps :meth:`delta_net` computes gates of unquantized weights."""
        projected = self._linear(x, qkvz, None, out_name="projected")
        if isinstance(gates, PackedMatrix) and not self._mix_of(batch).has_prefills:
            return projected, GateRows(x, gates)
        return projected, self._linear(x, gates, None, out_name="gates")

    def delta_net(
        self,
        projected: Array,
        gates: Array | GateRows,
        weights: DeltaNetWeights,
        spec: DeltaNetSpec,
        step: RecurrentStep,
    ) -> Array:
        """Launch one kernel for sequences with one token, and those of prompts for the others."""
        assert self._kernels is not None, "the model was reserved without Gated DeltaNet"
        (conv, decode, prefill, norm), mix = self._kernels, self._mix_of(step.batch)
        is_decode = step.rows is None and not mix.has_prefills
        shape = len(projected), spec.value_heads * spec.value_size
        out = self.gpu.workspace.array("gated" if is_decode else "recurrent", shape, BF16)
        if mix.has_decodes:
            given = DecodeInputs(projected, gates, weights, spec, step.batch)
            decode(given, step.states, step.inputs, out, has_norm=is_decode)
        if is_decode:
            return out
        if mix.has_prefills:
            assert not isinstance(gates, GateRows), "gates of prompts are computed before"
            least = 2 if mix.has_decodes else 1
            convolved = conv(
                projected,
                weights.conv,
                None,
                step.batch,
                step.inputs,
                has_prefills=True,
                min_tokens=least,
                out_name="convolved",
            )
            of_prompts = DeltaInputs(convolved, gates, weights, spec, step.batch)
            prefill(of_prompts, step.states, out, min_tokens=least)
        z = projected[:, spec.conv_size :]
        return norm(out, z, weights.norm, step.rows, eps=weights.eps, out_name="gated")
