"""Prometheus text: label escaping, cumulative buckets."""

from __future__ import annotations

from wisp_gateway.metrics import Family, Histogram, Metrics


def test_a_label_value_cannot_break_the_line_it_is_in():
    family = Family("wisp_x_total", "X.", "model")
    family.add(2, 'a"b\\c\nd')
    assert list(family.lines())[-1] == 'wisp_x_total{model="a\\"b\\\\c\\nd"} 2'


def test_buckets_are_cumulative():
    histogram = Histogram("wisp_x_seconds", "X.", "model")
    for seconds in (0.004, 0.2, 1000):
        histogram.observe(seconds, "m")
    lines = list(histogram.lines())
    assert 'wisp_x_seconds_bucket{model="m",le="0.005"} 1' in lines
    assert 'wisp_x_seconds_bucket{model="m",le="0.25"} 2' in lines
    assert 'wisp_x_seconds_bucket{model="m",le="300"} 2' in lines
    assert 'wisp_x_seconds_bucket{model="m",le="+Inf"} 3' in lines
    assert 'wisp_x_seconds_count{model="m"} 3' in lines


def test_models_that_are_gone_leave_no_series():
    """A tenant that makes and deletes models would fill the memory and every scrape."""
    metrics = Metrics()
    for model in ("a/stays", "a/gone", ""):
        metrics.requests.add(1, model, "200")
        metrics.hold.observe(1.0, model)
        metrics.tokens.set(1, model)
    metrics.keep_only({"a/stays"})
    text = metrics.render().decode()
    assert "a/gone" not in text
    assert text.count('model="a/stays"') > text.count('model=""') - 1 > 0
