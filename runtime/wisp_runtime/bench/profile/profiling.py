"""Profile a step: run it with every launch traced, then as served, and compare the two."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

from wisp_runtime.bench.contexts import insert_prefixes, make_prompts
from wisp_runtime.bench.harness import requests_of
from wisp_runtime.bench.profile.breakdown import Profile, summarize
from wisp_runtime.bench.profile.step_clocks import Interval, read
from wisp_runtime.bench.profile.trace import HostClock, Span, TracedDevice, Tracer
from wisp_runtime.bench.roofline import phase_bytes
from wisp_runtime.bench.steps import decode_row, first_token_rows
from wisp_runtime.bench.target import Target, TargetOptions, open_target
from wisp_runtime.engine import loop
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.ops.protocol.device import Device

WARM_UP_STEPS = 3
_WARM_UP_TOKENS = 64  # tokens that warm-up adds to a context
_SERVED_STEPS = 32


@dataclass(frozen=True, slots=True)
class Step:
    """Step to profile.

    Attributes:
        batch: sequences that decode, or prompts that arrive together.
        context: tokens of each decoding sequence.
        prompt: tokens of each prompt, for a prefill step; None for a decode step.
        traced: number of steps to trace.
    """

    batch: int
    context: int
    prompt: int | None
    traced: int

    @property
    def max_context(self) -> int:
        """Tokens that a sequence reaches."""
        if self.prompt is not None:
            return self.prompt + 1
        return self.context + max(self.traced, _SERVED_STEPS) + _WARM_UP_TOKENS

    @property
    def title(self) -> str:
        """Description of the step."""
        if self.prompt is not None:
            return f"prefill, {self.batch} × {self.prompt} tokens"
        return f"decode, batch {self.batch}, context {self.context}"


def profile_step(options: TargetOptions, step: Step) -> tuple[Profile, Target]:
    """Start the engine that ``options`` describes, and profile a step.

    Raises:
        RuntimeFailure: it does not fit, or cannot be started.
    """
    tracer = Tracer(HostClock(), sees_kernels=False)
    target = open_target(options, lambda device: cast(Device, TracedDevice(device, tracer)))
    with _launches_seen(target, tracer):
        trace = _trace_decode if step.prompt is None else _trace_prefill
        traced = trace(target, tracer, step)
    served_us = _served_us(target, step)
    title = f"{options.shape}: {step.title}"
    needed, has_kernels = _needed_bytes(target, step), target.ops.device == "cuda"
    layers = len(target.spec.layers)
    return summarize(title, layers, traced, needed, served_us, has_kernels=has_kernels), target


def profile_persistent_step(options: TargetOptions, step: Step) -> tuple[str, list[Interval], Target] | None:
    """Start the engine that ``options`` describes, and read the clocks of its persistent decode kernel.

    Returns:
        Title, intervals of the last step, and the engine; None if it does not run that kernel.
    """
    target = open_target(options)
    decode_step = cast(Any, target.runner).forward_pass.persistent
    path = target.strategy.path_of(step.batch, step.batch * (step.context + _WARM_UP_TOKENS))
    if decode_step is None or path != "persistent":
        return None
    cast(Any, target.runner).graphs.captures = False
    scheduler = _decoding(target, step)
    for _ in range(WARM_UP_STEPS):
        loop.step(scheduler, target.runner)
    clocks = decode_step.traced(lambda: loop.step(scheduler, target.runner))
    return f"{options.shape}: {step.title}, persistent kernel", read(clocks), target


def _launches_seen(target: Target, tracer: Tracer) -> Any:
    """Give the tracer the GPU's clock and every launch; on the CPU, do nothing."""
    if target.ops.device != "cuda":
        return nullcontext()
    from wisp_runtime.bench.profile.gpu_events import watched_launches

    return watched_launches(target, tracer)


def _trace_decode(target: Target, tracer: Tracer, step: Step) -> list[list[Span]]:
    """Trace decode steps of sequences with inserted contexts."""
    scheduler = _decoding(target, step)
    return list(_traced_steps(target, tracer, scheduler, step.traced))


def _decoding(target: Target, step: Step) -> Scheduler:
    """Return a scheduler whose sequences all decode."""
    scheduler = target.scheduler()
    prompts = make_prompts(step.batch, step.context, target.spec.vocab, seed=1)
    insert_prefixes(scheduler, prompts)
    for request in requests_of(
        prompts, step.traced + WARM_UP_STEPS + step.batch + 2, "profile", temperature=0.0
    ):
        scheduler.submit(request)
    while len(scheduler.running) < step.batch or any(s.pending_tokens > 1 for s in scheduler.running):
        loop.step(scheduler, target.runner)
    return scheduler


def _trace_prefill(target: Target, tracer: Tracer, step: Step) -> list[list[Span]]:
    """Trace prefill steps of prompts that arrive together."""
    scheduler, traced = target.scheduler(), list[list[Span]]()
    for number in range(WARM_UP_STEPS + step.traced):
        prompts = make_prompts(step.batch, step.prompt or 1, target.spec.vocab, seed=10 + number)
        for request in requests_of(prompts, 1, f"profile-{number}", temperature=0.0):
            scheduler.submit(request)
        traced += _traced_steps(target, tracer, scheduler, 1, warm_up=0)
        while not scheduler.is_idle:  # a prompt longer than a step
            loop.step(scheduler, target.runner)
    return traced[WARM_UP_STEPS:]


def _traced_steps(
    target: Target, tracer: Tracer, scheduler: Scheduler, steps: int, warm_up: int = WARM_UP_STEPS
) -> Iterator[list[Span]]:
    for _ in range(warm_up):
        loop.step(scheduler, target.runner)
    for _ in range(steps):
        with tracer.step() as spans:
            loop.step(scheduler, target.runner)
        yield spans


def _served_us(target: Target, step: Step) -> float | None:
    """Return the microseconds of the same step as served; of prefill only where one prompt fits a step."""
    if step.prompt is None:
        row = decode_row(
            target,
            batch=step.batch,
            context=step.context,
            steps=_SERVED_STEPS,
            sampling={"temperature": 0.0},
        )
        return 1e3 * row.value
    if step.batch > 1 or step.prompt > target.limits.max_step_tokens:
        return None
    rows = first_token_rows(target, prompts=[step.prompt], repeats=step.traced, is_cached=False)
    return 1e3 * statistics.median(row.value for row in rows)


def _needed_bytes(target: Target, step: Step) -> dict[str, int]:
    """Return the bytes that each phase must read; none for prefill, which is bound by computation."""
    if step.prompt is not None:
        return {}
    return phase_bytes(
        target.spec,
        weights=target.fit.quantization,
        kv=target.fit.kv,
        batch=step.batch,
        context=step.context,
    )
