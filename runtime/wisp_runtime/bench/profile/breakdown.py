"""Breakdown of a step: microseconds of each phase and kernel, as rows and as a table."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wisp_runtime.bench.profile.trace import ORDER, Span
from wisp_runtime.bench.record import Row
from wisp_runtime.bench.roofline import Ceiling
from wisp_runtime.bench.target import Target


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """A kernel of a phase, over one step.

    Attributes:
        phase, kernel: names of the phase and the kernel.
        launches: launches in a step.
        us: microseconds of all its launches in a step, median over the traced steps.
        needed_bytes: bytes that the phase must read in a step; None where it reads no weights or KV cache.
    """

    phase: str
    kernel: str
    launches: int
    us: float
    needed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """Breakdown of a step.

    Attributes:
        title: description of the step.
        layers: layers of the model.
        timings: kernels by phase in a step's order, the longest of a phase first.
        served_us: the same step as served, not traced; None if it was not measured.
        has_kernels: whether a GPU's kernels were timed; otherwise a CPU's ops.
    """

    title: str
    layers: int
    timings: tuple[KernelTiming, ...]
    served_us: float | None = None
    has_kernels: bool = True

    @property
    def us(self) -> float:
        """Sum of all kernels."""
        return sum(timing.us for timing in self.timings)

    def phases(self) -> dict[str, float]:
        """Return the microseconds of each phase, in a step's order."""
        sums: dict[str, float] = defaultdict(float)
        for timing in self.timings:
            sums[timing.phase] += timing.us
        return {phase: sums[phase] for phase in ORDER if phase in sums}


def summarize(
    title: str,
    layers: int,
    traced: Sequence[Iterable[Span]],
    needed: dict[str, int],
    served_us: float | None,
    *,
    has_kernels: bool = True,
) -> Profile:
    """Make a profile of traced steps: each kernel's median over the steps.

    Args:
        title: description of the step.
        layers: layers of the model.
        traced: spans of each step.
        needed: bytes that each phase must read in a step.
        served_us: time of the step as served, if known.
        has_kernels: see :class:`Profile`.
    """
    steps: list[dict[tuple[str, str], list[float]]] = []
    for spans in traced:
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for span in spans:
            times[span.phase, span.name].append(1e3 * span.ms)
        steps.append(times)
    timings = [
        KernelTiming(
            phase,
            kernel,
            launches=round(statistics.median(len(step.get((phase, kernel), ())) for step in steps)),
            us=statistics.median(sum(step.get((phase, kernel), ())) for step in steps),
            needed_bytes=needed.get(phase),
        )
        for phase, kernel in sorted({key for step in steps for key in step})
    ]
    timings.sort(key=lambda timing: (ORDER.index(timing.phase), -timing.us))
    return Profile(title, layers, tuple(timings), served_us, has_kernels)


def rows_of(profile: Profile, target: Target, *, batch: int, context: int) -> Iterator[Row]:
    """Make rows of a profile: each kernel's time, and each phase's bandwidth on weights or cache."""
    for timing in profile.timings:
        more = {"phase": timing.phase, "kernel": timing.kernel, "launches": timing.launches}
        yield target.row("kernel_us", timing.us, batch=batch, context=context, **more)
    for phase, us in profile.phases().items():
        needed = next((timing.needed_bytes for timing in profile.timings if timing.phase == phase), None)
        if needed and us:
            speed = needed / us / 1e3
            yield target.row("kernel_gb_per_s", speed, batch=batch, context=context, phase=phase)


def show(profile: Profile, ceiling: Ceiling | None) -> str:
    """Return a profile as a table; a phase's bandwidth and lower bound follow its first kernel.

    Columns that nothing is known for are left out.
    """
    has_bytes = any(timing.needed_bytes for timing in profile.timings)
    what, count = ("kernel", "launches") if profile.has_kernels else ("op", "calls")
    heads = [count, "us a step", "us each", "share"]
    heads += ["GB/s", *(["bound us"] if ceiling else [])] if has_bytes else []
    lines = [profile.title, f"{'phase':<11} {what:<26} " + " ".join(f"{head:>9}" for head in heads)]
    shown: set[str] = set()
    for timing in profile.timings:
        is_first = timing.phase not in shown
        shown.add(timing.phase)
        cells = [f"{timing.launches}", f"{timing.us:.1f}", f"{timing.us / max(timing.launches, 1):.2f}"]
        cells.append(f"{100 * timing.us / (profile.us or 1):.1f} %")
        if timing.needed_bytes and is_first:
            cells.append(_speed(timing.needed_bytes / (profile.phases()[timing.phase] or 1) / 1e3))
            cells += [f"{1e6 * timing.needed_bytes / ceiling.bytes_per_s:.1f}"] if ceiling else []
        phase = timing.phase if is_first else ""
        lines.append(f"{phase:<11} {timing.kernel:<26} " + " ".join(f"{cell:>9}" for cell in cells))
    launches = sum(timing.launches for timing in profile.timings)
    lines.append(f"{'sum':<11} {'':<26} {launches:>9} {profile.us:>9.1f}")
    if profile.served_us is not None:
        overlap = "kernels overlap; " if profile.has_kernels else ""
        lines.append(f"as served ({overlap}sampling, host work included): {profile.served_us:.1f} us")
    return "\n".join(lines)


def _speed(gb_per_s: float) -> str:
    return f"{gb_per_s:.0f}" if gb_per_s >= 10 else f"{gb_per_s:.2f}"
