"""Recurrent mixers of the CPU: the reference functions behind checks of every shape."""

from __future__ import annotations

from abc import abstractmethod

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops import reference
from wisp_runtime.ops.cpu.compact import CompactMatrix
from wisp_runtime.ops.cpu.packed import PackedMatrix
from wisp_runtime.ops.cpu.recurrent.delta_chunks import delta_rule_in_chunks
from wisp_runtime.ops.cpu.recurrent.scan_chunks import scan_in_chunks
from wisp_runtime.ops.protocol import checks
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights, MambaWeights, RecurrentStep


class RecurrentMixers:
    """Recurrent mixers, as :class:`..ops.CpuOps` has them; states are float32."""

    @abstractmethod
    def linear(self, x: Array, weight: PackedMatrix | CompactMatrix, bias: Array | None = None) -> Array:
        """See :func:`.reference.linear`."""

    def project_delta_net(
        self,
        x: Array,
        qkvz: PackedMatrix | CompactMatrix,
        gates: PackedMatrix | CompactMatrix,
        batch: Batch,  # noqa: ARG002 (for devices that fuse)
    ) -> tuple[Array, Array]:
        """See :func:`.reference.linear`."""
        return self.linear(x, qkvz), self.linear(x, gates)

    def delta_net(
        self,
        projected: Array,
        gates: Array,
        weights: DeltaNetWeights,
        spec: DeltaNetSpec,
        step: RecurrentStep,
    ) -> Array:
        """See :func:`.reference.delta_net`; of several tokens the recurrence is chunked."""
        checks.delta_net(projected, gates, weights, spec, step)
        return reference.delta_net(projected, gates, weights, spec, step, rule=delta_rule_in_chunks)

    def project_mamba(
        self, x: Array, weight: PackedMatrix | CompactMatrix, bias: Array | None = None
    ) -> Array:
        """See :func:`.reference.linear`."""
        return self.linear(x, weight, bias)

    def mamba(
        self,
        projected: Array,
        weights: MambaWeights,
        spec: MambaSpec,
        step: RecurrentStep,
    ) -> Array:
        """See :func:`.reference.mamba`; of several tokens the scan is in chunks."""
        checks.mamba(projected, weights, spec, step)
        return reference.mamba(projected, weights, spec, step, scan=scan_in_chunks)
