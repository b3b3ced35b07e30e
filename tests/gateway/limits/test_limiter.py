"""Limits of keys by an injected clock: rates, debts, requests at once; a refused one counts for none."""

from __future__ import annotations

import pytest

from wisp_gateway.limits.errors import RateLimited, TokensLimited
from wisp_gateway.limits.limiter import Limiter
from wisp_names.key_limits import KeyLimits


class Clock:
    def __init__(self) -> None:
        self.now_s = 5000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def limiter(clock):
    return Limiter(clock)


def refusal(limiter, name, limits, tokens=0):
    """Return the error of a request that is not let in; None: it was, and has ended."""
    try:
        limiter.admit(name, limits, tokens).settle(None)
    except RateLimited as error:
        return error
    return None


@pytest.mark.parametrize(("slow_rpm", "fast_rpm"), [(600, 6000), (300, 3000), (600, 600), (30, 3000)])
def test_two_keys_at_10_and_100_requests_a_second_each_get_their_own_rate(limiter, clock, slow_rpm, fast_rpm):
    granted = {"slow": 0, "fast": 0}
    first_minute_s, minutes = 60, 5
    for tick in range((1 + minutes) * 60 * 100):
        clock.now_s = 5000.0 + tick / 100
        for name, rpm, every in (("slow", slow_rpm, 10), ("fast", fast_rpm, 1)):
            if tick % every == 0 and refusal(limiter, name, KeyLimits(rpm)) is None:
                granted[name] += tick >= first_minute_s * 100  # before, a full bucket is spent
    assert granted["slow"] / minutes == pytest.approx(min(slow_rpm, 600), rel=0.02)
    assert granted["fast"] / minutes == pytest.approx(min(fast_rpm, 6000), rel=0.02)


def test_a_client_that_waits_for_retry_after_ms_is_let_in_then_and_not_before(limiter, clock):
    limits = KeyLimits(requests_per_minute=7)
    for _ in range(7):
        assert refusal(limiter, "a", limits) is None
    for _ in range(50):
        error = refusal(limiter, "a", limits)
        wait_ms = int(dict(error.headers())[b"retry-after-ms"])
        clock.now_s += wait_ms / 1000 - 0.01
        assert refusal(limiter, "a", limits) is not None
        clock.now_s += 0.01
        assert refusal(limiter, "a", limits) is None


def test_tokens_are_reserved_and_settled_with_their_use(limiter, clock):
    limits = KeyLimits(tokens_per_minute=1000)
    first = limiter.admit("a", limits, 800)
    assert limiter.quotas("a", limits)["tokens"].remaining == 200
    error = refusal(limiter, "a", limits, 300)
    assert isinstance(error, TokensLimited)
    assert "200 are left, and this request may need 300" in error.message
    assert error.retry_after_s == 6
    first.settle(100)
    assert limiter.quotas("a", limits)["tokens"].remaining == 900
    limiter.admit("a", limits, 300).settle(None)  # cut off: the reservation stays
    assert limiter.quotas("a", limits)["tokens"].remaining == 600
    limiter.admit("a", limits, 300).settle(0)
    assert limiter.quotas("a", limits)["tokens"].remaining == 600
    limiter.admit("a", limits, 300).settle(2600)  # longer than it said: a debt of two minutes
    assert limiter.quotas("a", limits)["tokens"].remaining == 0
    assert refusal(limiter, "a", limits, 1).retry_after_s == 121
    clock.now_s += 121
    assert refusal(limiter, "a", limits, 1) is None


def test_a_request_over_a_minutes_tokens_waits_for_a_full_minute_and_runs(limiter, clock):
    limits = KeyLimits(tokens_per_minute=1000)
    assert refusal(limiter, "a", limits, 1) is None
    error = refusal(limiter, "a", limits, 10**9)
    assert error.retry_after_s == 1
    clock.now_s += 1
    limiter.admit("a", limits, 10**9).settle(400)
    assert limiter.quotas("a", limits)["tokens"].remaining == 600


def test_requests_at_once_are_bounded_until_one_ends(limiter):
    limits = KeyLimits(concurrent=2)
    running = [limiter.admit("a", limits, 0) for _ in range(2)]
    error = refusal(limiter, "a", limits)
    assert "2 requests of this key already wait or run" in error.message
    assert refusal(limiter, "b", limits) is None
    running.pop().settle(None)
    assert refusal(limiter, "a", limits) is None


def test_a_refused_request_counts_for_no_other_limit(limiter):
    limits = KeyLimits(requests_per_minute=10, tokens_per_minute=100, concurrent=1)
    assert refusal(limiter, "a", limits, 100) is None
    for _ in range(20):
        assert isinstance(refusal(limiter, "a", limits, 50), TokensLimited)
    quotas = limiter.quotas("a", limits)
    assert (quotas["requests"].remaining, quotas["tokens"].remaining) == (9, 0)


def test_an_account_without_use_is_forgotten_and_one_that_runs_is_not(limiter, clock):
    limits = KeyLimits(requests_per_minute=60)
    running = limiter.admit("runs", limits, 0)
    assert refusal(limiter, "ended", limits) is None
    assert limiter.debts_s() == {"runs": (1.0, 0.0), "ended": (1.0, 0.0)}
    clock.now_s += 2
    assert limiter.debts_s() == {"runs": (0.0, 0.0)}
    running.settle(None)
    assert limiter.debts_s() == {}


def test_one_answer_stops_a_key_for_ten_minutes_at_most_whatever_its_pod_reports(limiter, clock):
    limits = KeyLimits(tokens_per_minute=1000)
    limiter.admit("a", limits, 10).settle(10**9 - 1)
    error = refusal(limiter, "a", limits, 10)
    assert 500 < float(dict(error.headers())[b"retry-after"]) <= 600
    clock.now_s += 600
    assert refusal(limiter, "a", limits, 10) is None
