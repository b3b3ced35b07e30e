"""The bucket of one number against the one of the textbook, which holds an amount and a time."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wisp_gateway.limits.bucket import TOLERANCE_S, Bucket

MS = Fraction(1, 1000)
STEPS = st.lists(
    st.tuples(st.integers(0, 90_000), st.integers(1, 150), st.integers(-60, 60)), min_size=1, max_size=40
)


class TextbookBucket:
    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self.amount = Fraction(per_minute)
        self.now_s = Fraction(0)

    def at(self, now_s: Fraction) -> Fraction:
        self.amount += (now_s - self.now_s) * self.per_minute / 60
        self.amount, self.now_s = min(self.amount, Fraction(self.per_minute)), now_s
        return self.amount

    def take(self, amount: int) -> None:
        self.amount = min(self.amount - amount, Fraction(self.per_minute))


def level_of(bucket, per_minute, now_s):
    """Return the amount in a bucket; negative: a debt."""
    return per_minute * (1 - bucket.refill_s(now_s) / 60)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(per_minute=st.integers(1, 100_000), steps=STEPS)
def test_levels_waits_and_refills_are_those_of_the_textbook(per_minute, steps):
    bucket, textbook, now_s = Bucket(), TextbookBucket(per_minute), Fraction(0)
    for pause_ms, percent, correction in steps:
        now_s += pause_ms * MS
        amount = max(1, per_minute * percent // 100)
        level = textbook.at(now_s)
        tolerance = 1e-4 * per_minute / 60
        assert level_of(bucket, per_minute, float(now_s)) == pytest.approx(float(level), abs=tolerance)
        missing = max(Fraction(0), min(amount, per_minute) - level)
        wait_s = bucket.wait_s(amount, per_minute, float(now_s))
        assert wait_s == pytest.approx(float(missing * 60 / per_minute), abs=TOLERANCE_S * 1.1)
        assert bucket.refill_s(float(now_s)) == pytest.approx(
            float((per_minute - level) * 60 / per_minute), abs=1e-4
        )
        if missing == 0:
            reservation = bucket.reserve(amount, per_minute, float(now_s))
            used = amount + correction * per_minute // 100
            bucket.settle(reservation, used, per_minute)
            textbook.take(used)


@pytest.mark.parametrize("start_s", [0.0, 1e3, 1e7])  # a clock may be that of a machine that runs for months
@pytest.mark.parametrize("per_minute", [1, 7, 600, 59_999])
def test_what_is_due_at_a_moment_is_there_at_that_moment(start_s, per_minute):
    bucket = Bucket()
    for index in range(per_minute):
        assert bucket.wait_s(1, per_minute, start_s) == 0, index
        bucket.take(1, per_minute, start_s)
    assert bucket.wait_s(1, per_minute, start_s) == pytest.approx(60 / per_minute, abs=1e-4)
    for index in range(1, 200):
        now_s = start_s + index * (60 / per_minute)
        assert bucket.wait_s(1, per_minute, now_s) == 0
        bucket.take(1, per_minute, now_s)


RUNS = st.lists(
    st.tuples(
        st.integers(0, 40_000),  # pause before it, in ms
        st.integers(1, 100),  # reserved, in percent of a minute's amount
        st.integers(0, 100),  # used, in percent of that
        st.integers(0, 300_000),  # duration in ms
    ),
    min_size=1,
    max_size=30,
)


def run_all(per_minute, runs):
    """Run those that are let in; return the bucket, each admission's time and use, and the last time."""
    bucket, now_ms, open_, used = Bucket(), 0, [], []

    def settle_until(end_ms):
        for ended in sorted((each for each in open_ if each[0] <= end_ms), key=lambda each: each[0]):
            open_.remove(ended)
            bucket.settle(ended[1], ended[2], per_minute)

    for pause_ms, percent, used_percent, duration_ms in runs:
        now_ms += pause_ms
        settle_until(now_ms)
        amount = max(1, per_minute * percent // 100)
        if bucket.wait_s(amount, per_minute, now_ms / 1000) == 0:
            final = amount * used_percent // 100
            open_.append((now_ms + duration_ms, bucket.reserve(amount, per_minute, now_ms / 1000), final))
            used.append((now_ms / 1000, final))
    settle_until(float("inf"))
    return bucket, used, now_ms / 1000


@settings(deadline=None, max_examples=300, derandomize=True)
@given(per_minute=st.sampled_from([7, 600, 100_000]), runs=RUNS)
def test_no_minute_has_more_than_the_limit_and_a_burst_and_what_was_not_used_comes_back(per_minute, runs):
    bucket, used, now_s = run_all(per_minute, runs)
    for start_s, _ in used:
        in_a_minute = sum(amount for at_s, amount in used if start_s <= at_s <= start_s + 60)
        assert in_a_minute <= 2 * per_minute * (1 + 1e-3) + 1
    ideal = TextbookBucket(per_minute)
    for at_s, amount in used:
        ideal.at(Fraction(at_s))
        ideal.take(amount)
    level = float(ideal.at(Fraction(now_s)))
    assert level_of(bucket, per_minute, now_s) == pytest.approx(level, abs=1e-6 * per_minute)


def test_a_reservation_that_was_refilled_meanwhile_is_not_given_back_again():
    bucket = Bucket()
    held = []
    for minute in range(10):
        assert bucket.wait_s(100, 100, 60.0 * minute) == 0
        held.append(bucket.reserve(100, 100, 60.0 * minute))
    granted = 0
    for reservation in held:
        bucket.settle(reservation, 0, 100)
        while bucket.wait_s(1, 100, 600.0) == 0:
            bucket.take(1, 100, 600.0)
            granted += 1
    assert granted == 100


def test_an_answer_that_used_more_than_was_reserved_leaves_a_debt():
    bucket = Bucket()
    bucket.settle(bucket.reserve(10, 100, 0.0), 250, 100)
    assert level_of(bucket, 100, 30.0) == pytest.approx(-100)


def test_a_limit_may_change_while_it_is_used():
    bucket = Bucket()
    bucket.take(50, 100, 0.0)
    assert level_of(bucket, 100, 0.0) == 50
    assert level_of(bucket, 10, 0.0) == 5  # the same share of a minute
    assert level_of(bucket, 1000, 30.0) == 1000
