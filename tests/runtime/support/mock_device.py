"""A device that records launches and computes nothing; its tokens are scripted, and it fails on demand.

Work runs late, on the stream of ``fake_device.py``: a launch is recorded when it runs, and again by each
replay of a graph.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from fake_device import FakeStream

from wisp_plan.memory.alternatives import MAX_ALTERNATIVES
from wisp_plan.memory.buffers.gpu import gpu_buffers
from wisp_plan.units import GIB
from wisp_runtime.comm.none import NO_COMM
from wisp_runtime.errors import GpuOutOfMemory, KernelsMissing
from wisp_runtime.ops import registry
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.protocol.device import Memory


class CUDARuntimeError(RuntimeError):
    """The driver's error as CuPy raises it."""

    status = 700


CUDARuntimeError.__module__ = "cupy_backends.cuda.api.runtime"


class Launch(NamedTuple):
    """An op that ran, and the shape of its result."""

    op: str
    shape: tuple[int, ...]


class MockOps(CpuOps):
    """Ops whose results are zeros; weights are stored as on the CPU.

    Attributes:
        launches: ops in the order in which they ran.
        fault_after: launches until one fails as a kernel's fault does; None: none fails.
        launch_s: seconds that a launch takes.
    """

    device, kernels = "mock", "mock"

    def __init__(self, stream: FakeStream) -> None:
        super().__init__(threads=1)
        self.stream, self.launches = stream, []
        self.fault_after, self.launch_s = None, 0.0

    def launch(self, op, *shape):
        self.stream.enqueue(lambda: self.ran(Launch(op, shape)))
        return np.zeros(shape, np.float32)

    def ran(self, launch):
        time.sleep(self.launch_s)
        if self.fault_after is not None:
            self.fault_after -= 1
            if self.fault_after < 0:
                raise CUDARuntimeError
        self.launches.append(launch)

    def embedding(self, tokens, table):
        return self.launch("embedding", len(tokens), table.inputs)

    def rmsnorm(self, x, weight, *, eps, is_zero_centred=False):
        return self.launch("rmsnorm", *x.shape)

    def add_rmsnorm(self, x, residual, weight, *, eps, rows=None, is_zero_centred=False):
        return self.launch("add_rmsnorm", *x.shape)

    def gather_rows(self, x, rows):
        return self.launch("gather_rows", len(rows), x.shape[1])

    def linear(self, x, weight, bias=None):
        return self.launch("linear", len(x), weight.outputs)

    def swiglu(self, x, weight, bias=None):
        return self.launch("swiglu", len(x), weight.outputs // 2)

    def logits(self, x, weight):
        return self.launch("logits", len(x), weight.outputs)

    def project_qkv(self, x, projection, batch, cache):
        heads = projection.heads
        return self.launch("project_qkv", len(x), heads.queries, heads.size)

    def paged_attention(self, q, cache, batch, *, scale, window, sinks):
        return self.launch("paged_attention", *q.shape)

    def persistent_kernel(self, spec, weights, rope, max_sequences, encodings, *, must_be_timed=False):
        return "a mock has no persistent kernel"


class MockSampler:
    """Samples ``script(position)`` for the token at a position of its sequence."""

    def __init__(self, ops, script, max_rows):
        self.ops, self.script = ops, script
        self.parameter_bytes = 8 * (1 + max_rows)
        self.tokens, self.is_sound = np.zeros(max_rows, np.int32), np.ones(max_rows, np.uint8)

    def host_view(self, memory):
        return memory.view(np.int64)

    def fill(self, view, sampling):
        view[0] = len(sampling.steps)
        view[1 : 1 + len(sampling.steps)] = sampling.steps

    def launch(self, logits, rows, parameters, *, logprobs, greedy):
        positions = parameters.view(np.int64)

        def work():
            count = int(positions[0])
            self.tokens[:count] = [self.script(position) for position in positions[1 : 1 + count].tolist()]

        self.ops.launch("sample", rows)
        self.ops.stream.enqueue(work)
        alternatives = np.zeros((rows, MAX_ALTERNATIVES), np.float32) if logprobs >= 0 else None
        return SimpleNamespace(
            tokens=self.tokens[:rows],
            is_sound=self.is_sound[:rows],
            logprobs=None if alternatives is None else alternatives[:, 0].copy(),
            top_ids=None if alternatives is None else alternatives.astype(np.int32),
            top_logprobs=alternatives,
        )


class MockDevice:
    """See :class:`wisp_runtime.ops.protocol.device.Device`.

    Attributes:
        log: calls of ``reserve`` and ``seal``, with the launches that ran before each.
        reserved: buffers that the ledger counts for the reserved step.
        has_memory: whether ``reserve`` succeeds.
        has_kv_kernels: whether a quantized KV cache has its kernels.
        co_running: number of other processes that use it through MPS.
    """

    comm = NO_COMM

    def __init__(self, script=lambda position: position % 100, *, is_late=True, free_bytes=GIB):
        self.stream = FakeStream(is_late=is_late)
        self.ops = MockOps(self.stream)
        self.script, self.free_bytes = script, free_bytes
        self.sampler, self.has_memory, self.has_kv_kernels = None, True, True
        self.log, self.reserved, self.co_running = [], (), 0

    def require_model(self, spec, block_tokens):
        pass

    def require_kv(self, kv):
        if kv.inner.is_quantized and not self.has_kv_kernels:
            raise KernelsMissing("the kernel quantize_kv is not compiled for mock")

    def memory(self):
        return Memory("cuda", "mock", self.free_bytes, self.free_bytes, 0, sm_count=4)

    def co_running_processes(self):
        return self.co_running

    def reserve(self, spec, step):
        if not self.has_memory:
            raise GpuOutOfMemory("allocating 4096 bytes for the workspace's buffer residual: no memory")
        self.log.append(("reserve", len(self.ops.launches)))
        self.reserved = gpu_buffers(spec, step)
        self.sampler = MockSampler(self.ops, self.script, step.max_sequences)

    def seal(self):
        self.log.append(("seal", len(self.ops.launches)))


@contextmanager
def registered(device: MockDevice):
    """Make ``--device mock`` open ``device``."""
    registry.register("mock", lambda _threads: device)
    try:
        yield device
    finally:
        registry.unregister("mock")
