"""The host as a device: every op has ended when its call returns, so there is no stream."""

from __future__ import annotations

from wisp_plan.hardware.host import available_bytes
from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.comm.none import NO_COMM
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.protocol.device import Memory


class CpuDevice:
    """See :class:`.protocol.device.Device`.

    Args:
        threads: threads that share a GEMM; None is chosen by measurement, once the model is known.
    """

    stream = None
    sampler = None
    comm = NO_COMM

    def __init__(self, threads: int | None = None) -> None:
        self.ops = CpuOps(threads)

    def require_model(self, spec: ModelSpec, block_tokens: int) -> None:  # noqa: ARG002 (a GPU's business)
        """Choose the threads for this model; NumPy takes every size."""
        self.ops.choose_threads(spec)

    def require_kv(self, kv: KvLayers) -> None:
        """Require nothing: NumPy decodes every format."""

    def memory(self) -> Memory:
        """Return what the machine and this process's cgroups have left."""
        return Memory("cpu", "this machine", available_bytes())

    def co_running_processes(self) -> int:
        """Return 0: no kernel here waits for another."""
        return 0

    def reserve(self, spec: ModelSpec, step: StepSizes) -> None:
        """Allocate nothing: NumPy allocates as it computes."""

    def seal(self) -> None:
        """Nothing is sealed."""
