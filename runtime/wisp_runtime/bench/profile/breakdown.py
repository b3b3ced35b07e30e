"""A step taken apart: microseconds of each phase and kernel, as rows and as a table."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wisp_runtime.bench.profile.trace import ORDER, Span
from wisp_runtime.bench.record import Row
from wisp_runtime.bench.roofline import Ceiling
from wisp_runtime.bench.target import Subject


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel of a phase, over one step.

    Attributes:
        phase, kernel: which.
        launches: in a step.
        us: of all of them, the median over the traced steps.
        needed_bytes: that the phase must read in a step; None where it is not weights or KV cache.
    """

    phase: str
    kernel: str
    launches: int
    us: float
    needed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """A step, taken apart.

    Attributes:
        title: what was run.
        layers: of the model.
        parts: by phase in a step's order, the longest kernel of a phase first.
        served_us: the same step as it is served, not taken apart; None if it was not measured.
    """

    title: str
    layers: int
    parts: tuple[Part, ...]
    served_us: float | None = None

    @property
    def us(self) -> float:
        """The sum of all kernels."""
        return sum(part.us for part in self.parts)

    def phases(self) -> dict[str, float]:
        """Return the microseconds of each phase, in a step's order."""
        found: dict[str, float] = defaultdict(float)
        for part in self.parts:
            found[part.phase] += part.us
        return {phase: found[phase] for phase in ORDER if phase in found}


def sum_up(
    title: str, layers: int, traced: Sequence[Iterable[Span]], needed: dict[str, int], served_us: float | None
) -> Profile:
    """Make a profile of traced steps: of each kernel the median over the steps.

    Args:
        title: of the profile.
        layers: of the model.
        traced: the spans of each step.
        needed: bytes that a phase must read in a step.
        served_us: the step's time as served, if known.
    """
    steps: list[dict[tuple[str, str], list[float]]] = []
    for spans in traced:
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for span in spans:
            found[span.phase, span.name].append(1e3 * span.ms)
        steps.append(found)
    parts = [
        Part(
            phase,
            kernel,
            launches=round(statistics.median(len(step.get((phase, kernel), ())) for step in steps)),
            us=statistics.median(sum(step.get((phase, kernel), ())) for step in steps),
            needed_bytes=needed.get(phase),
        )
        for phase, kernel in sorted({key for step in steps for key in step})
    ]
    parts.sort(key=lambda part: (ORDER.index(part.phase), -part.us))
    return Profile(title, layers, tuple(parts), served_us)


def rows_of(profile: Profile, subject: Subject, *, batch: int, context: int) -> Iterator[Row]:
    """Make rows of a profile: each kernel's time, and how fast phases read weights or cache."""
    for part in profile.parts:
        more = {"phase": part.phase, "kernel": part.kernel, "launches": part.launches}
        yield subject.row("kernel_us", part.us, batch=batch, context=context, **more)
    for phase, us in profile.phases().items():
        needed = next((part.needed_bytes for part in profile.parts if part.phase == phase), None)
        if needed and us:
            speed = needed / us / 1e3
            yield subject.row("kernel_gb_per_s", speed, batch=batch, context=context, phase=phase)


def show(profile: Profile, ceiling: Ceiling | None) -> str:
    """Return a profile as a table; a phase's speed and floor stand beside its first kernel."""
    heads = ("launches", "us a step", "us each", "share", "GB/s", "floor us")
    lines = [profile.title, f"{'phase':<11} {'kernel':<26} " + " ".join(f"{head:>9}" for head in heads)]
    told: set[str] = set()
    for part in profile.parts:
        is_first = part.phase not in told
        told.add(part.phase)
        cells = [f"{part.launches}", f"{part.us:.1f}", f"{part.us / max(part.launches, 1):.2f}"]
        cells.append(f"{100 * part.us / (profile.us or 1):.1f} %")
        if part.needed_bytes and is_first:
            cells.append(f"{part.needed_bytes / profile.phases()[part.phase] / 1e3:.0f}")
            cells += [f"{1e6 * part.needed_bytes / ceiling.bytes_per_s:.1f}"] if ceiling else []
        phase = part.phase if is_first else ""
        lines.append(f"{phase:<11} {part.kernel:<26} " + " ".join(f"{cell:>9}" for cell in cells))
    launches = sum(part.launches for part in profile.parts)
    lines.append(f"{'sum':<11} {'':<26} {launches:>9} {profile.us:>9.1f}")
    if profile.served_us is not None:
        lines.append(f"as served (kernels overlap; sampling, host work included): {profile.served_us:.1f} us")
    return "\n".join(lines)
