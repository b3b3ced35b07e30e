"""An NVIDIA GPU as a device: one stream, our kernels, a workspace of declared buffers."""

from __future__ import annotations

import cupy as cp

from wisp_plan.hardware.catalogue import hardware_of
from wisp_plan.hardware.kernel_formats import kernel_formats
from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.comm.none import NO_COMM
from wisp_runtime.ops.cuda import requirements
from wisp_runtime.ops.cuda.device import context_prefetch
from wisp_runtime.ops.cuda.device.driver import translate
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.stream import CudaStream
from wisp_runtime.ops.cuda.ops import CudaOps
from wisp_runtime.ops.cuda.sampling.sampler import Sampler
from wisp_runtime.ops.protocol.device import Memory


class CudaDevice:
    """See :class:`.protocol.device.Device`.

    Args:
        ops: the ops of an open GPU.
    """

    comm = NO_COMM

    def __init__(self, ops: CudaOps) -> None:
        self.ops, self.gpu = ops, ops.gpu
        self.stream = CudaStream(self.gpu.stream)

    @classmethod
    def open(cls) -> CudaDevice:
        """Open the first GPU that this process sees; raises as :meth:`.ops.CudaOps.open`."""
        return cls(CudaOps.open())

    @property
    def sampler(self) -> Sampler | None:
        """Return the sampler that :meth:`reserve` made."""
        return self.ops.sampler

    def require_model(self, spec: ModelSpec, block_tokens: int) -> None:
        """Refuse sizes that no kernel takes, and look up the kernels of the model's recurrent mixers.

        Raises as :func:`.requirements.require_model`, :meth:`.ops.CudaOps.require_delta_net` and
        :meth:`.ops.CudaOps.require_mamba`.
        """
        requirements.require_model(spec, block_tokens)
        self.ops.require_delta_net(spec)
        self.ops.require_mamba(spec)

    def require_kv(self, kv: KvLayers) -> None:
        """Look up the kernels of a quantized cache; raises as :meth:`.ops.CudaOps.require_kv`."""
        self.ops.require_kv(kv)

    def memory(self) -> Memory:
        """Return what the GPU has left now, and what this process holds of it."""
        return memory_of(self.gpu)

    def co_running_processes(self) -> int:
        """Return the number of other clients of the MPS server; 0 without MPS."""
        return context_prefetch.co_running_processes(self.gpu.index)

    def reserve(self, spec: ModelSpec, step: StepSizes) -> None:
        """Allocate the buffers of a step, and make the sampler."""
        self.ops.reserve(spec, step)

    def seal(self) -> None:
        """Allow no allocation from here on."""
        self.gpu.workspace.seal()


def memory_of(gpu: Gpu) -> Memory:
    """Return what a GPU has left now, and what this process holds of it."""
    free_bytes = gpu.free_bytes()
    with translate("asking for the GPU's memory"):
        total_bytes = int(cp.cuda.runtime.memGetInfo()[1])
    held_bytes = context_prefetch.process_bytes(gpu.index)
    formats = kernel_formats(hardware_of(gpu.capability))
    return Memory("cuda", gpu.name, free_bytes, total_bytes, held_bytes, gpu.sm_count, formats)
