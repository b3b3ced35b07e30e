"""Prometheus text: escaping, cumulative buckets, and names that cannot clash."""

import pytest

from wisp_runtime.metrics import Counter, Histogram, Reading, Registry
from wisp_runtime.server.readings import TokenRate


def lines(metric, **labels):
    registry = Registry(labels)
    registry.add(metric)
    return registry.render().splitlines()[2:]


def test_a_counter_starts_at_zero_and_grows():
    counter = Counter("c_total", "Help.")
    assert lines(counter) == ["c_total 0"]
    counter.add()
    counter.add(1.5)
    assert lines(counter) == ["c_total 2.5"]


def test_labels_are_escaped_and_come_after_the_registrys():
    counter = Counter("c_total", "Help.", ("why",))
    counter.add(why='a"b\\c\nd')
    assert lines(counter, model_name="m") == ['c_total{model_name="m",why="a\\"b\\\\c\\nd"} 1']


def test_a_labelled_counter_without_observations_has_no_samples():
    assert lines(Counter("c_total", "Help.", ("why",))) == []


@pytest.mark.parametrize(
    ("value", "counts"),
    [(0.5, [1, 1, 1]), (1, [1, 1, 1]), (1.5, [0, 1, 1]), (9, [0, 0, 1])],  # bounds are inclusive
)
def test_histogram_buckets_are_cumulative(value, counts):
    histogram = Histogram("h", "Help.", [2, 1])
    histogram.observe(value)
    text = lines(histogram)
    assert [int(line.rsplit(" ", 1)[1]) for line in text[:3]] == counts
    assert text[:3] == [
        f'h_bucket{{le="{le}"}} {n}' for le, n in zip(("1", "2", "+Inf"), counts, strict=True)
    ]
    assert text[3:] == [f"h_sum {value}", "h_count 1"]


def test_a_reading_is_taken_when_it_is_rendered():
    values = iter([1, 2])
    reading = Reading("g", "Help.", lambda: next(values))
    assert (lines(reading), lines(reading)) == (["g 1"], ["g 2"])


def test_a_name_of_another_server_repeats_the_samples_with_its_labels():
    registry = Registry({}, {"engine": "0"})
    registry.add(Counter("a_total", "Help\nme."), "b:total")
    assert registry.render() == (
        "# HELP a_total Help\\nme.\n# TYPE a_total counter\na_total 0\n"
        '# HELP b:total Help\\nme.\n# TYPE b:total counter\nb:total{engine="0"} 0\n'
    )


def test_a_name_is_taken_once():
    registry = Registry({})
    registry.add(Counter("a_total", "Help."))
    with pytest.raises(ValueError, match="a_total"):
        registry.add(Reading("a_total", "Help.", lambda: 1))


def test_the_token_rate_drops_counts_older_than_its_window():
    rate = TokenRate(5.0)
    for tenth in range(50):
        rate.add(100 + tenth / 10)
    assert rate.per_second(105.0) == pytest.approx(10, rel=0.05)
    assert rate.per_second(107.5) == pytest.approx(5, rel=0.1)
    assert rate.per_second(111) == 0
