"""Time of each phase of the persistent decode kernel, from the clocks that its thread blocks record.

Pure. One thread of each block records the end of an activity of a phase (``Trace`` in
``persistent/compute.cuh``): the clock of its multiprocessor, above eight bits that identify phase and
activity. At both ends it records the GPU's global clock too, so that the blocks' times can be aligned.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from wisp_runtime.bench.record import Row
from wisp_runtime.bench.target import Target

PHASES = ("embedding", "qkv", "attention", "output", "router", "gate/up", "down", "head")
"""Phases in a step's order, ``PhaseKind`` of ``persistent/compute.cuh``."""
ACTIVITIES = ("wait", "multiply", "add", "store")
"""Activity that ends at a mark: waiting for a phase to begin; GEMM tiles, and in attention all of it; adding
other blocks' partial sums; storing, and signalling the other blocks."""

_CLOCKS = len(PHASES)


@dataclass(frozen=True, slots=True)
class Interval:
    """An activity of a phase, on one block.

    Attributes:
        block: index of the thread block.
        layer: index from 0; the embedding is in the first, the head in one past the last.
        phase, activity: names of :data:`PHASES` and :data:`ACTIVITIES`.
        begin_us, end_us: microseconds since the first block began.
    """

    block: int
    layer: int
    phase: str
    activity: str
    begin_us: float
    end_us: float

    @property
    def us(self) -> float:
        """Duration."""
        return self.end_us - self.begin_us


def read(clocks: Any) -> list[Interval]:
    """Read the blocks' clocks.

    Args:
        clocks: ``[blocks, marks]`` int64, zeros where nothing was recorded.
    """
    blocks = [_marks(row.tolist()) for row in clocks]
    began_ns = min(anchors[0][1] for _, anchors in blocks)
    numbered = enumerate(blocks)
    return [interval for index, block in numbered for interval in _intervals(index, *block, began_ns)]


def _marks(row: list[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return a block's marks (code, clock), and the clock and nanoseconds of both its ends."""
    marks, anchors, index = list[tuple[int, int]](), list[tuple[int, int]](), 0
    while index < len(row) and row[index]:
        code, clock = row[index] & 0xFF, row[index] >> 8
        if code // 8 == _CLOCKS:
            anchors.append((clock, row[index + 1]))
            index += 1
        marks.append((code, clock))
        index += 1
    return marks, anchors


def _intervals(
    block: int, marks: list[tuple[int, int]], anchors: list[tuple[int, int]], began_ns: int
) -> Iterator[Interval]:
    (first_clock, first_ns), (last_clock, last_ns) = anchors
    ns_a_clock = (last_ns - first_ns) / (last_clock - first_clock)
    times_us = [(first_ns - began_ns + (clock - first_clock) * ns_a_clock) / 1e3 for _, clock in marks]
    layer = 0
    for (code, _), begin_us, end_us in zip(marks[1:], times_us, times_us[1:], strict=False):
        kind, activity = divmod(code, 8)
        if kind == _CLOCKS:
            return
        yield Interval(block, layer, PHASES[kind], ACTIVITIES[activity], begin_us, end_us)
        layer += PHASES[kind] == "down" and ACTIVITIES[activity] == "store"


def rows_of(intervals: list[Interval], target: Target, *, batch: int, context: int) -> Iterator[Row]:
    """Make a row of each activity of each phase: its mean over layers and blocks, and the slowest block's."""
    for (phase, activity), blocks in means(intervals).items():
        more = {"phase": phase, "part": activity, "slowest_us": max(blocks), "path": "persistent"}
        value = statistics.fmean(blocks)
        yield target.row("step_part_us", value, batch=batch, context=context, **more)


def means(intervals: list[Interval]) -> dict[tuple[str, str], list[float]]:
    """Return each block's mean microseconds over layers, by phase and activity in a step's order."""
    times: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for interval in intervals:
        times[interval.phase, interval.activity][interval.block].append(interval.us)
    in_order = sorted(times, key=lambda key: (PHASES.index(key[0]), ACTIVITIES.index(key[1])))
    return {key: [statistics.fmean(block) for block in times[key].values()] for key in in_order}


def show(title: str, intervals: list[Interval]) -> str:
    """Return a table: each activity's mean over layers and blocks, its fastest and its slowest block."""
    lines = [title, f"{'phase':<11} {'activity':<9} {'us each':>9} {'quickest block':>15} {'slowest':>9}"]
    for (phase, activity), blocks in means(intervals).items():
        mean, fastest, slowest = statistics.fmean(blocks), min(blocks), max(blocks)
        lines.append(f"{phase:<11} {activity:<9} {mean:>9.2f} {fastest:>15.2f} {slowest:>9.2f}")
    total_us = max(interval.end_us for interval in intervals)
    lines.append(f"from the first block's begin to the last's end: {total_us:.1f} us")
    return "\n".join(lines)
