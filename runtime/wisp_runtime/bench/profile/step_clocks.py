"""Where the time of a decode step in one launch goes, by the clocks that its thread blocks leave.

Pure. One thread of each block notes when a part of a phase is over (``Trace`` in
``decode_step_compute.cuh``): the clock of its multiprocessor, above eight bits that say of which part. At
both ends it notes the GPU's common clock too, so the blocks' times can be laid side by side.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from wisp_runtime.bench.record import Row
from wisp_runtime.bench.target import Subject

PHASES = ("embedding", "qkv", "attention", "output", "gate/up", "down", "head")
PARTS = ("wait", "multiply", "add", "store")
"""What ended at a mark: waiting for a phase to begin; products, and in attention all of it; adding other
blocks' sums; storing, and telling the other blocks."""

_CLOCKS = len(PHASES)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a phase, on one block.

    Attributes:
        block: which.
        layer: counted from 0; the embedding is in the first, the head in one past the last.
        phase, part: of :data:`PHASES` and :data:`PARTS`.
        begin_us, end_us: since the first block began.
    """

    block: int
    layer: int
    phase: str
    part: str
    begin_us: float
    end_us: float

    @property
    def us(self) -> float:
        """How long it took."""
        return self.end_us - self.begin_us


def read(clocks: Any) -> list[Piece]:
    """Read what the blocks left.

    Args:
        clocks: ``[blocks, marks]`` int64, zeros where nothing was noted.
    """
    blocks = [_marks(row.tolist()) for row in clocks]
    began_ns = min(anchors[0][1] for _, anchors in blocks)
    return [piece for block, noted in enumerate(blocks) for piece in _pieces(block, *noted, began_ns)]


def _marks(row: list[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return a block's marks (what, clock), and the clock and nanoseconds of both its ends."""
    marks, anchors, place = list[tuple[int, int]](), list[tuple[int, int]](), 0
    while place < len(row) and row[place]:
        what, clock = row[place] & 0xFF, row[place] >> 8
        if what // 8 == _CLOCKS:
            anchors.append((clock, row[place + 1]))
            place += 1
        marks.append((what, clock))
        place += 1
    return marks, anchors


def _pieces(
    block: int, marks: list[tuple[int, int]], anchors: list[tuple[int, int]], began_ns: int
) -> Iterator[Piece]:
    (first_clock, first_ns), (last_clock, last_ns) = anchors
    ns_a_clock = (last_ns - first_ns) / (last_clock - first_clock)
    times_us = [(first_ns - began_ns + (clock - first_clock) * ns_a_clock) / 1e3 for _, clock in marks]
    layer = 0
    for (what, _), begin_us, end_us in zip(marks[1:], times_us, times_us[1:], strict=False):
        kind, part = divmod(what, 8)
        if kind == _CLOCKS:
            return
        yield Piece(block, layer, PHASES[kind], PARTS[part], begin_us, end_us)
        layer += PHASES[kind] == "down" and PARTS[part] == "store"


def rows_of(pieces: list[Piece], subject: Subject, *, batch: int, context: int) -> Iterator[Row]:
    """Make a row of each part of each phase: its mean over layers and blocks, and the slowest block's."""
    for (phase, part), blocks in means(pieces).items():
        more = {"phase": phase, "part": part, "slowest_us": max(blocks), "path": "persistent"}
        value = statistics.fmean(blocks)
        yield subject.row("step_part_us", value, batch=batch, context=context, **more)


def means(pieces: list[Piece]) -> dict[tuple[str, str], list[float]]:
    """Return each block's mean microseconds of each part of each phase, over layers, in a step's order."""
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for piece in pieces:
        found[piece.phase, piece.part][piece.block].append(piece.us)
    in_order = sorted(found, key=lambda key: (PHASES.index(key[0]), PARTS.index(key[1])))
    return {key: [statistics.fmean(times) for times in found[key].values()] for key in in_order}


def show(title: str, pieces: list[Piece]) -> str:
    """Return a table: each part's mean over layers and blocks, and the blocks that take least and most."""
    lines = [title, f"{'phase':<11} {'part':<9} {'us each':>9} {'quickest block':>15} {'slowest':>9}"]
    for (phase, part), blocks in means(pieces).items():
        mean, least, most = statistics.fmean(blocks), min(blocks), max(blocks)
        lines.append(f"{phase:<11} {part:<9} {mean:>9.2f} {least:>15.2f} {most:>9.2f}")
    lines.append(
        f"from the first block's begin to the last's end: {max(piece.end_us for piece in pieces):.1f} us"
    )
    return "\n".join(lines)
