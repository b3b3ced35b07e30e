"""Time each operation of a step, and on a GPU each kernel in it.

:class:`TracedOps` wraps the device's ops and assigns each to a phase of the layer. On a GPU every launch gets
a CUDA event before and after it; that keeps kernels from overlapping, so the sum exceeds the step's time as
served. On the CPU ops run one after another, so the sum is that time without the work between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from wisp_plan.kv_formats.layers import KV_FORMATS
from wisp_runtime.ops.protocol.device import Device
from wisp_runtime.ops.protocol.ops import Ops

PHASES = {
    "embedding": "embedding",
    "rmsnorm": "norm",
    "add_rmsnorm": "norm",
    "project_qkv": "qkv",
    "project_gated_qkv": "qkv",
    "paged_attention": "attention",
    "gate_heads": "attention",
    "project_delta_net": "mixer input",
    "project_mamba": "mixer input",
    "delta_net": "recurrence",
    "mamba": "recurrence",
    "gather_rows": "output",
    "swiglu": "gate/up",
    "scaled_swiglu": "gate/up",
    "geglu": "gate/up",
    "relu2": "gate/up",
    "route": "router",
    "mixture": "experts",
    "from_latent": "experts",
    "combined": "experts",
    "logits": "head",
    "sample": "sampling",
    "linear": "linear",
    "scale": "other",
    "add_scaled": "other",
    "copy_slot": "other",
}
"""Phase of each op that computes; a device's other methods allocate, convert or report."""

_LINEAR_PHASES = {
    **dict.fromkeys(("paged_attention", "gate_heads", "gather_rows", "delta_net", "mamba"), "output"),
    **dict.fromkeys(("swiglu", "scaled_swiglu", "geglu", "relu2"), "down"),
}  # phase of a plain GEMM by the op before it, whose result it multiplies
_KERNEL_PHASES = {
    "rope_write_kv": "rope + KV",
    "rope_write_kv_narrow": "rope + KV",
    **{f"quantize_kv_{name}": "rope + KV" for name in KV_FORMATS},
    "causal_conv": "convolution",
}  # launched inside an op of another phase
ORDER = (
    "embedding",
    "norm",
    "qkv",
    "rope + KV",
    "attention",
    "mixer input",
    "convolution",
    "recurrence",
    "output",
    "router",
    "experts",
    "gate/up",
    "down",
    "linear",
    "head",
    "sampling",
    "other",
)
"""Phases in the order of a step; norms precede several."""


class Clock(Protocol):
    """Marks points in the device's work and measures the time between two of them."""

    def prepare(self) -> None:
        """Keep the device busy while a step is launched, so that it never waits for launches."""
        ...

    def mark(self) -> Any:
        """Return a mark after all that was launched."""
        ...

    def ms(self, begin: Any, end: Any) -> float:
        """Return the milliseconds between two completed marks."""
        ...

    def synchronize(self) -> None:
        """Wait until every mark is complete."""
        ...


class HostClock:
    """Clock of synchronous ops."""

    def prepare(self) -> None:
        """Do nothing: ops run when they are called."""

    def mark(self) -> float:
        """Return the time."""
        return time.perf_counter()

    def ms(self, begin: float, end: float) -> float:
        """Return the difference."""
        return 1e3 * (end - begin)

    def synchronize(self) -> None:
        """Do nothing: every op is complete."""


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel (or, on the CPU, one op) of a step: phase, name, milliseconds."""

    phase: str
    name: str
    ms: float


class Tracer:
    """Collects the spans of a step.

    Args:
        clock: clock of the device.
        sees_kernels: whether launches call :meth:`timed`; otherwise an op is a span.
    """

    def __init__(self, clock: Clock, *, sees_kernels: bool) -> None:
        self.clock, self.sees_kernels = clock, sees_kernels
        self._phase = "other"
        self._marks: list[tuple[str, str, Any, Any]] | None = None
        self._last_op = ""

    @contextmanager
    def step(self) -> Iterator[list[Span]]:
        """Collect inside the block; the list is filled when it ends."""
        self._marks, self._last_op = [], ""
        spans: list[Span] = []
        self.clock.prepare()
        try:
            yield spans
            self.clock.synchronize()
            spans += [Span(phase, name, self.clock.ms(begin, end)) for phase, name, begin, end in self._marks]
        finally:
            self._marks = None

    def timed(self, name: str, run: Callable[[], Any]) -> Any:
        """Run a function and record it as a span of the current phase."""
        if self._marks is None:
            return run()
        begin = self.clock.mark()
        result = run()
        self._marks.append((_KERNEL_PHASES.get(name, self._phase), name, begin, self.clock.mark()))
        return result

    def op(self, name: str, run: Callable[[], Any]) -> Any:
        """Run an op of the device: its launches belong to its phase."""
        before, self._phase = self._phase, self._phase_of(name)
        try:
            return run() if self.sees_kernels else self.timed(name, run)
        finally:
            self._phase = before

    def _phase_of(self, op: str) -> str:
        before, self._last_op = self._last_op, op
        return _LINEAR_PHASES.get(before, PHASES[op]) if op == "linear" else PHASES[op]


class TracedDevice:
    """A device whose ops and sampler report to a tracer; everything else is the device's own."""

    def __init__(self, device: Device, tracer: Tracer) -> None:
        self._traced_device, self._tracer = device, tracer
        self.ops = TracedOps(device.ops, tracer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._traced_device, name)

    @property
    def sampler(self) -> Any:
        """Return the device's sampler, traced."""
        sampler = self._traced_device.sampler
        return None if sampler is None else TracedSampler(sampler, self._tracer)


class TracedOps:
    """Ops of a device, each reported to a tracer; other attributes are the device's own."""

    def __init__(self, ops: Ops, tracer: Tracer) -> None:
        self._traced_ops, self._tracer = ops, tracer

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._traced_ops, name)
        if name not in PHASES:
            return attribute

        def traced(*args: Any, **keywords: Any) -> Any:
            return self._tracer.op(name, lambda: attribute(*args, **keywords))

        return traced


class TracedSampler:
    """A device's sampler, whose launches are the phase "sampling"."""

    def __init__(self, sampler: Any, tracer: Tracer) -> None:
        self._traced_sampler, self._tracer = sampler, tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._traced_sampler, name)

    def launch(self, *args: Any, **keywords: Any) -> Any:
        """Sample tokens."""
        return self._tracer.op("sample", lambda: self._traced_sampler.launch(*args, **keywords))
