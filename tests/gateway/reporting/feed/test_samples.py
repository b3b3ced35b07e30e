"""Samples that are kept: averages over ten seconds, and what came since the last of them."""

from __future__ import annotations

import pytest

from wisp_gateway.discovery.snapshot import Model
from wisp_gateway.metrics import Metrics
from wisp_gateway.reporting.feed.pod_reader import PodReader
from wisp_gateway.reporting.feed.samples import Samples
from wisp_gateway.routing.model_state import ModelState


async def fetch(key, address):
    return None


def empty():
    state = ModelState(Model("default", "m", "m", "Ready"), Metrics(), lambda: 0.0)
    return Samples(PodReader(fetch, lambda: 0.0)), state


def rows_after(seconds, prompts):
    """Return the kept samples after so many seconds, with prompt tokens counted before some of them."""
    samples, state = empty()
    for second in range(1, seconds + 1):
        if second in prompts:
            samples.add_prompt("default/m", prompts[second])
        samples.take([state], float(second), 1000.0 + second)
    return [(row["t"], row["models"].get("default/m", {}).get("in")) for row in samples.rows()]


@pytest.mark.parametrize(
    ("seconds", "prompts", "rows"),
    [
        (3, {}, []),  # nothing ran
        (2, {1: 30}, [(1002.0, 15.0)]),  # a page that opens now sees it
        (10, {1: 30}, [(1010.0, 3.0)]),
        (12, {1: 30}, [(1010.0, 3.0)]),
        (12, {1: 30, 12: 8}, [(1010.0, 3.0), (1012.0, 4.0)]),
        (20, {1: 30}, [(1010.0, 3.0), (1020.0, None)]),  # the line ends at zero
    ],
)
def test_the_history_has_averages_and_the_seconds_since(seconds, prompts, rows):
    assert rows_after(seconds, prompts) == rows


def test_samples_older_than_fifteen_minutes_are_dropped_also_while_nothing_runs():
    samples, state = empty()
    samples.add_prompt("default/m", 30)
    kept = {}
    for second in range(1, 1000):
        samples.take([state], float(second), 1000.0 + second)
        kept[second] = [row["t"] for row in samples.rows()]
    assert kept[20] == kept[910] == [1010.0, 1020.0]
    assert kept[911] == kept[920] == [1020.0]
    assert kept[921] == []
