"""Traces: the same for every server, with the rates and lengths that were asked for."""

import statistics
from itertools import pairwise

import pytest

from wisp_runtime.bench.load.requests import Address
from wisp_runtime.bench.load.trace import (
    Arrival,
    Lengths,
    burst_stage,
    poisson_stage,
    prompt_ids,
    sequential_stage,
)

MIXED = Lengths(300, 150, 0.6)


def test_a_seed_gives_every_server_the_same_requests():
    assert poisson_stage(15, 20, MIXED, 7) == poisson_stage(15, 20, MIXED, 7)
    assert poisson_stage(15, 20, MIXED, 7) != poisson_stage(15, 20, MIXED, 8)
    arrivals = burst_stage(3, MIXED, 0).arrivals
    assert prompt_ids(arrivals, 256, 1) == prompt_ids(arrivals, 256, 1)
    assert prompt_ids(arrivals, 256, 1) != prompt_ids(arrivals, 256, 2)


def test_arrivals_are_a_poisson_process_of_the_rate():
    """Its gaps' standard deviation equals their mean; a clock's would be zero."""
    times = [arrival.at_s for arrival in poisson_stage(50, 200, MIXED, 0).arrivals]
    gaps = [after - before for before, after in pairwise(times)]
    assert times == sorted(times)
    assert times[-1] < 200
    assert len(times) / 200 == pytest.approx(50, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.05)


def test_lengths_are_log_normal_around_their_medians():
    arrivals = burst_stage(4000, MIXED, 0).arrivals
    assert statistics.median(arrival.prompt_tokens for arrival in arrivals) == pytest.approx(300, rel=0.05)
    assert statistics.median(arrival.output_tokens for arrival in arrivals) == pytest.approx(150, rel=0.05)
    assert statistics.fmean(arrival.prompt_tokens for arrival in arrivals) > 330  # the long tail
    assert all(37 <= arrival.prompt_tokens <= 2400 for arrival in arrivals)


def test_no_spread_makes_all_lengths_equal():
    assert {*burst_stage(50, Lengths(30, 10, 0.0), 0).arrivals} == {Arrival(0.0, 30, 10)}


def test_a_rate_below_one_a_stage_sends_one_request():
    assert len(poisson_stage(0.001, 1, MIXED, 0).arrivals) == 1


def test_requests_alone_wait_for_each_other():
    stage = sequential_stage(128, 16, 7)
    assert stage.is_sequential
    assert stage.arrivals == (Arrival(0.0, 128, 16),) * 7


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "/v1"),
        ("http://h:81/v1/", "h", 81, "/v1"),
        ("https://h/api", "h", 443, "/api/v1"),
        ("http://[::1]:9", "::1", 9, "/v1"),
    ],
)
def test_a_url_with_or_without_v1_is_the_same_server(url, host, port, path):
    address = Address.parse(url)
    assert (address.host, address.port, address.path) == (host, port, path)
    assert address.is_tls == url.startswith("https")
