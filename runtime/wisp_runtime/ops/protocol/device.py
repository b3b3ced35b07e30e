"""A device as the engine sees it: operations, a stream, a sampler, memory.

``ops/registry.py`` opens one by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.comm.protocol import Comm
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.ops.protocol.sampling import Sampler
from wisp_runtime.ops.protocol.stream import Stream


@dataclass(frozen=True, slots=True)
class Memory:
    """Free and used memory of a device.

    Attributes:
        device: kind of device in the ledger: ``cpu`` or ``cuda``.
        device_name: name for messages: ``this machine``, ``NVIDIA H200``.
        free_bytes: memory that this process may still take.
        total_bytes: all memory of a GPU, in use or not.
        process_bytes: a GPU's memory that this process holds already, its context included; None is unknown.
        sm_count: SMs of a GPU.
        formats: weight formats that the device has kernels for (:mod:`wisp_plan.hardware.kernel_formats`).
    """

    device: Literal["cpu", "cuda"]
    device_name: str
    free_bytes: int
    total_bytes: int = 0
    process_bytes: int | None = None
    sm_count: int | None = None
    formats: tuple[str, ...] = ("bf16",)


class Device(Protocol):
    """One open device, for one thread."""

    @property
    def ops(self) -> Ops:
        """Return the operations that layers call."""
        ...

    @property
    def stream(self) -> Stream | None:
        """Return the stream that ops run on; None where each op has ended when its call returns."""
        ...

    @property
    def sampler(self) -> Sampler | None:
        """Return the sampler on the stream, once :meth:`reserve` has made it; None without a stream."""
        ...

    @property
    def comm(self) -> Comm:
        """Return the ranks that share the model."""
        ...

    def require_model(self, spec: ModelSpec, block_tokens: int) -> None:
        """Refuse sizes that no kernel takes.

        Raises:
            ConfigError: KV blocks of ``block_tokens`` tokens are none of the device.
            ModelUnsupported: the model has such a size.
        """
        ...

    def require_kv(self, kv: KvLayers) -> None:
        """Refuse formats of keys and values whose kernels are not there.

        Raises:
            KernelsMissing: names the first missing one.
        """
        ...

    def memory(self) -> Memory:
        """Return how much memory the device has left now."""
        ...

    def co_running_processes(self) -> int:
        """Return the number of other processes whose kernels may run at once with ours.

        Time slices do not count: there each process has the whole device in turn.
        """
        ...

    def reserve(self, spec: ModelSpec, step: StepSizes) -> None:
        """Allocate every buffer of a step, as :mod:`wisp_plan.memory.buffers` declares them.

        Raises:
            GpuOutOfMemory: there is less memory than the ledger counted on.
        """
        ...

    def seal(self) -> None:
        """Allow no allocation from here on."""
        ...


class ContextPrefetch(Protocol):
    """A GPU's context in the making, started before anything else.

    Attributes:
        is_missing: whether it is known by now that there is no such GPU.
    """

    @property
    def is_missing(self) -> bool: ...

    def wait(self) -> tuple[int, int] | None:
        """Wait until the GPU was looked up; return its compute capability, None if there is no such GPU."""
        ...
