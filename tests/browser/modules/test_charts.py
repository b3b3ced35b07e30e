"""Modules of charts by themselves: lines, axes, and what stands where there is no line."""

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


@pytest.mark.parametrize(
    ("measure", "at_rest", "values", "lines"),
    [
        ("kv", None, [None, None], 0),
        ("prefixHits", None, [0, 0], 1),  # measured: nothing came from the cache
        ("out", 0, [0, 0], 0),  # a model that answers nothing has no line
        ("out", 0, [0, 5], 1),
    ],
)
def test_a_measure_has_a_line_if_it_was_measured(call, measure, at_rest, values, lines):
    samples = [{"t": 100 + place, "models": {"a/m": {measure: value}}} for place, value in enumerate(values)]
    chart = {"measure": measure} | ({} if at_rest is None else {"atRest": at_rest})
    shown = call("views/series.js", "m.measureSeries(...argument)", [samples, ["a/m"], 102, chart])
    assert len(shown) == lines


@pytest.mark.parametrize(
    ("samples", "keys", "chart", "text"),
    [
        ([{"models": {"a/m": {"kv": None}}}], ["a/m"], {}, "Not measured"),
        ([{"models": {"a/m": {"kv": None}}}], ["a/other"], {}, "No data"),
        ([], ["a/m"], {}, "No data"),
        ([{"models": {"a/m": {"out": 0}}}], ["a/m"], {"atRest": 0}, "No data"),
    ],
)
def test_a_chart_without_a_line_says_why(call, samples, keys, chart, text):
    assert call("views/series.js", "m.emptyText(...argument)", [samples, keys, chart]).startswith(text)


ON_CPU = {"namespace": "a", "name": "m", "gpus": 0}
MEASURED = [{"models": {"a/m": {"gpuUsed": 1024}}}]


@pytest.mark.parametrize(
    ("models", "samples", "keys", "uses"),
    [
        ([ON_CPU], [], ["a/m"], False),
        ([ON_CPU | {"gpus": 1}], [], ["a/m"], True),
        ([ON_CPU | {"gpus": 1, "gpu": None, "ledger": [{"name": "kv"}]}], [], ["a/m"], False),  # --device cpu
        ([ON_CPU | {"gpus": 1, "gpu": {"name": "L4"}, "ledger": [{"name": "kv"}]}], [], ["a/m"], True),
        (
            [ON_CPU, {"namespace": "a", "name": "big", "gpus": 1}],
            [],
            ["a/m"],
            False,
        ),  # of the shown one alone
        ([], MEASURED, ["a/m"], True),  # a model that is gone
        ([], [{"models": {"a/m": {"gpuUsed": None}}}], ["a/m"], False),
    ],
)
def test_gpu_memory_is_shown_of_models_on_a_gpu(call, models, samples, keys, uses):
    assert call("views/series.js", "m.usesGpu(...argument)", [models, samples, keys]) is uses


@pytest.mark.parametrize(
    ("largest", "steps", "roof"),
    [
        (None, "undefined", 1),
        (200, "undefined", 220),
        (0.3, "m.WHOLE_NUMBERS", 1),  # averaged counts have fractions, marks have none
        (20, "m.WHOLE_NUMBERS", 22),
    ],
)
def test_an_axis_ends_above_its_largest_value_and_has_a_mark_beyond_zero(call, largest, steps, roof):
    assert call("views/axes.js", f"m.roofOf(argument, {steps})", largest) == pytest.approx(roof)


def test_counts_have_whole_marks_alone(call):
    assert call("views/axes.js", "m.WHOLE_NUMBERS.every(Number.isInteger)") is True
