"""Intervals read from the clocks of the persistent decode kernel, and their chart."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from wisp_runtime.bench.profile import step_clocks, step_svg
from wisp_runtime.bench.profile.step_clocks import ACTIVITIES, PHASES

CLOCKS = len(PHASES)


def clocks_of(first_clock, first_ns, ns_a_clock, marks):
    """A block's row: marks are (phase, activity, clocks since its begin)."""
    row = [first_clock << 8 | CLOCKS * 8, first_ns]
    row += [
        (first_clock + at) << 8 | PHASES.index(phase) * 8 + ACTIVITIES.index(activity)
        for phase, activity, at in marks
    ]
    end = marks[-1][2] + 100
    row += [(first_clock + end) << 8 | CLOCKS * 8, first_ns + int(end * ns_a_clock)]
    return np.pad(np.array(row, np.int64), (0, 64 - len(row)))


LAYER = [("qkv", "multiply", 1000), ("qkv", "add", 1200), ("down", "multiply", 3000), ("down", "store", 3300)]
MARKS = [
    ("embedding", "store", 400),
    *LAYER,
    *((a, b, at + 3000) for a, b, at in LAYER),
    ("head", "store", 9000),
]


@pytest.fixture
def intervals():
    # The second block's multiprocessor has another clock, and begins a microsecond later.
    rows = [clocks_of(10_000, 5_000_000, 0.5, MARKS), clocks_of(77_000_000, 5_001_000, 1.0, MARKS)]
    return step_clocks.read(np.stack(rows))


def test_times_are_the_gpus_however_fast_a_multiprocessors_clock_runs(intervals):
    first = [interval for interval in intervals if interval.block == 0]
    assert [(each.phase, each.activity, each.layer) for each in first[:5]] == [
        ("embedding", "store", 0),
        ("qkv", "multiply", 0),
        ("qkv", "add", 0),
        ("down", "multiply", 0),
        ("down", "store", 0),
    ]
    assert (first[1].begin_us, first[1].end_us) == pytest.approx((0.2, 0.5))
    assert [each.layer for each in first[5:]] == [1, 1, 1, 1, 2]
    second = [interval for interval in intervals if interval.block == 1]
    assert (second[1].begin_us, second[1].us) == pytest.approx((1.4, 0.6))


def test_a_block_ends_at_its_last_mark(intervals):
    assert len(intervals) == 2 * len(MARKS)


def test_the_table_has_the_mean_and_the_slowest_block(intervals):
    shown = step_clocks.show("a step", intervals)
    line = next(line for line in shown.splitlines() if line.startswith("down        store"))
    assert line.split() == ["down", "store", "0.22", "0.15", "0.30"]
    assert shown.endswith("end: 10.0 us")
    assert next(iter(step_clocks.means(intervals))) == ("embedding", "store")


def test_the_chart_has_a_bar_for_each_interval_of_the_layer(intervals):
    root = ElementTree.fromstring(step_svg.render("a <step>", intervals, 1))
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2 * len(LAYER)
    assert "down, store: 0.15 µs" in titles
