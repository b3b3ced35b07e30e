"""Take a step apart: run it with every launch noted, then as it is served, and put both side by side."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

from wisp_runtime.bench.contexts import make_prompts, place
from wisp_runtime.bench.harness import requests_of
from wisp_runtime.bench.profile.breakdown import Profile, sum_up
from wisp_runtime.bench.profile.step_clocks import Piece, read
from wisp_runtime.bench.profile.trace import HostClock, Span, TracedDevice, Tracer
from wisp_runtime.bench.roofline import phase_bytes
from wisp_runtime.bench.steps import decode_row, first_token_rows
from wisp_runtime.bench.target import Subject, Wanted, open_subject
from wisp_runtime.engine import loop
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.ops.protocol.device import Device

WARM_UP_STEPS = 3
_ROOM_TOKENS = 64  # that warm-up adds to a context
_SERVED_STEPS = 32


@dataclass(frozen=True, slots=True)
class Step:
    """What to take apart.

    Attributes:
        batch: sequences that decode, or prompts that arrive together.
        context: tokens each has when it decodes.
        prompt: tokens of each prompt, for a step that computes prompts; None for a decode step.
        traced: steps to trace.
    """

    batch: int
    context: int
    prompt: int | None
    traced: int

    @property
    def room(self) -> int:
        """Tokens that a sequence must be able to hold."""
        if self.prompt is not None:
            return self.prompt + 1
        return self.context + max(self.traced, _SERVED_STEPS) + _ROOM_TOKENS

    @property
    def title(self) -> str:
        """What was run, in a few words."""
        if self.prompt is not None:
            return f"prefill, {self.batch} × {self.prompt} tokens"
        return f"decode, batch {self.batch}, context {self.context}"


def profile_step(wanted: Wanted, step: Step) -> tuple[Profile, Subject]:
    """Bring up the engine that ``wanted`` describes, and take a step of it apart.

    Raises:
        RuntimeFailure: it does not fit, or cannot be had.
    """
    tracer = Tracer(HostClock(), sees_kernels=False)
    subject = open_subject(wanted, lambda device: cast(Device, TracedDevice(device, tracer)))
    with _launches_seen(subject, tracer):
        trace = _trace_decode if step.prompt is None else _trace_prefill
        traced = trace(subject, tracer, step)
    served_us = _served_us(subject, step)
    title = f"{wanted.shape}: {step.title}"
    return sum_up(title, len(subject.spec.layers), traced, _needed_bytes(subject, step), served_us), subject


def profile_whole_step(wanted: Wanted, step: Step) -> tuple[str, list[Piece], Subject] | None:
    """Bring up the engine that ``wanted`` describes, and read the clocks of a decode step in one launch.

    Returns:
        what was run, the pieces of the last step, and the engine; None if its decode steps are not so.
    """
    subject = open_subject(wanted)
    whole = cast(Any, subject.runner).forward_pass.persistent
    path = subject.strategy.path_of(step.batch, step.batch * (step.context + _ROOM_TOKENS))
    if whole is None or path != "persistent":
        return None
    cast(Any, subject.runner).graphs.records = False
    scheduler = _decoding(subject, step)
    for _ in range(WARM_UP_STEPS):
        loop.step(scheduler, subject.runner)
    clocks = whole.traced(lambda: loop.step(scheduler, subject.runner))
    return f"{wanted.shape}: {step.title}, one launch", read(clocks), subject


def _launches_seen(subject: Subject, tracer: Tracer) -> Any:
    """Give the tracer the GPU's clock and let it see launches; nothing of that on the CPU."""
    if subject.ops.device != "cuda":
        return nullcontext()
    from wisp_runtime.bench.profile.gpu_events import watched_launches

    return watched_launches(subject, tracer)


def _trace_decode(subject: Subject, tracer: Tracer, step: Step) -> list[list[Span]]:
    """Trace decode steps of sequences whose contexts are placed, not computed."""
    scheduler = _decoding(subject, step)
    return list(_traced_steps(subject, tracer, scheduler, step.traced))


def _decoding(subject: Subject, step: Step) -> Scheduler:
    """Return a scheduler whose sequences all decode."""
    scheduler = subject.scheduler()
    prompts = make_prompts(step.batch, step.context, subject.spec.vocab, seed=1)
    place(scheduler, prompts)
    for request in requests_of(
        prompts, step.traced + WARM_UP_STEPS + step.batch + 2, "profile", temperature=0.0
    ):
        scheduler.submit(request)
    while len(scheduler.running) < step.batch or any(one.pending_tokens > 1 for one in scheduler.running):
        loop.step(scheduler, subject.runner)
    return scheduler


def _trace_prefill(subject: Subject, tracer: Tracer, step: Step) -> list[list[Span]]:
    """Trace steps that compute prompts which arrive together."""
    scheduler, traced = subject.scheduler(), list[list[Span]]()
    for number in range(WARM_UP_STEPS + step.traced):
        prompts = make_prompts(step.batch, step.prompt or 1, subject.spec.vocab, seed=10 + number)
        for request in requests_of(prompts, 1, f"profile-{number}", temperature=0.0):
            scheduler.submit(request)
        traced += _traced_steps(subject, tracer, scheduler, 1, warm_up=0)
        while not scheduler.is_idle:  # a prompt longer than a step
            loop.step(scheduler, subject.runner)
    return traced[WARM_UP_STEPS:]


def _traced_steps(
    subject: Subject, tracer: Tracer, scheduler: Scheduler, steps: int, warm_up: int = WARM_UP_STEPS
) -> Iterator[list[Span]]:
    for _ in range(warm_up):
        loop.step(scheduler, subject.runner)
    for _ in range(steps):
        with tracer.step() as spans:
            loop.step(scheduler, subject.runner)
        yield spans


def _served_us(subject: Subject, step: Step) -> float | None:
    """Return the microseconds of the same step as served; of prompts only where one alone fits a step."""
    if step.prompt is None:
        row = decode_row(
            subject,
            batch=step.batch,
            context=step.context,
            steps=_SERVED_STEPS,
            sampling={"temperature": 0.0},
        )
        return 1e3 * row.value
    if step.batch > 1 or step.prompt > subject.limits.max_step_tokens:
        return None
    rows = first_token_rows(subject, prompts=[step.prompt], repeats=step.traced, is_cached=False)
    return 1e3 * statistics.median(row.value for row in rows)


def _needed_bytes(subject: Subject, step: Step) -> dict[str, int]:
    """Return the bytes that each phase must read; none of prefill, which computes more than it reads."""
    if step.prompt is not None:
        return {}
    return phase_bytes(
        subject.spec,
        weights=subject.fit.quantization,
        kv=subject.fit.kv_dtype,
        batch=step.batch,
        context=step.context,
    )
