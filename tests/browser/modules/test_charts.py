"""Modules of charts by themselves: lines, axes, and what stands where there is none."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("values", "share", "result"),
    [
        ([], 0.5, None),
        ([7], 0.99, 7),
        ([3, 1, 2], 0.5, 2),
        ([4, 3, 2, 1], 0.5, 2),
        (list(range(1, 101)), 0.95, 95),
    ],
)
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(call, values, share, result):
    assert call("views/series.js", "m.percentile(...argument)", [values, share]) == result


@pytest.mark.parametrize(
    ("samples", "requests", "start"),
    [
        ([], [], 940),  # a minute at least
        ([990], [], 940),
        ([700, 990], [], 700),
        ([700], [650], 650),
        ([10], [], 100),  # 15 minutes at most
    ],
)
def test_the_time_axis_begins_at_the_first_value_within_a_minute_and_fifteen(call, samples, requests, start):
    rows = [[{"t": t} for t in samples], [{"time": time} for time in requests], 1000]
    assert call("views/series.js", "m.startOf(...argument)", rows) == start


def test_a_rate_falls_to_zero_between_samples_that_are_far_apart(call):
    samples = [{"t": t, "models": {"a/m": {"out": 5}}} for t in (100, 101, 200)]
    (line,) = call(
        "views/series.js", "m.measureSeries(argument, ['a/m'], 210, { measure: 'out', atRest: 0 })", samples
    )
    assert (line["x"], line["y"]) == ([100, 101, 102, 199, 200, 201, 210], [5, 5, 0, 0, 5, 0, 0])
