"""Who may wait, for how long, and who goes next: the pure rules as tables."""

from __future__ import annotations

import pytest

from wisp_gateway.discovery.snapshot import ColdStart, Model
from wisp_gateway.errors import ModelFailed, ModelSuspended, QueueFull, WaitedTooLong
from wisp_gateway.routing.request_queue import Hold, Ticket, refuse_wait, retry_after


def model(state="Asleep", mode="Hold", queue_limit=2):
    return Model("ns", "m", "m", state, reason="Why", cold_start=ColdStart(mode, 10, 1, queue_limit))


def ticket(name="t", outcomes=None, entered_s=0.0, deadline_s=10.0):
    settled = outcomes if outcomes is not None else []
    return Ticket(None, entered_s, deadline_s, lambda what: settled.append((name, what)))


@pytest.mark.parametrize(
    ("state", "mode", "ready", "is_held", "code"),
    [
        ("Asleep", "Hold", 0, False, None),
        ("Waking", "Hold", 0, False, None),
        ("Ready", "Hold", 0, False, None),  # the directory is behind: its pod just died
        ("Ready", "Hold", 1, False, None),
        ("Asleep", "Reject", 0, False, "model_asleep"),
        ("Asleep", "Reject", 0, True, None),  # let in while a pod was ready: its mode is about cold starts
        ("Ready", "Reject", 1, False, None),  # all busy: that is a line, not a cold start
        ("Failed", "Hold", 0, False, "model_failed"),
        ("Failed", "Hold", 0, True, "model_failed"),
        ("Failed", "Hold", 1, False, None),  # one pod of two still answers
        ("Suspended", "Hold", 0, False, "model_suspended"),
        ("Suspended", "Hold", 1, True, "model_suspended"),  # outranks pods that still drain
    ],
)
def test_who_may_wait(state, mode, ready, is_held, code):
    refusal = refuse_wait(model(state, mode), ready=ready, retry_after_s=7, is_held=is_held)
    assert (refusal.code if refusal else None) == code


@pytest.mark.parametrize(
    ("expected_s", "elapsed_s", "seconds"),
    [
        (None, 0, 10),  # never seen one
        (4.2, 0, 5),
        (4.2, 3, 2),
        (4.2, 100, 1),  # overdue: soon, but never at once
        (900, 0, 60),  # the SDKs give up when told to wait over two minutes
    ],
)
def test_retry_after_is_what_is_left_of_the_usual_time(expected_s, elapsed_s, seconds):
    assert retry_after(expected_s=expected_s, elapsed_s=elapsed_s) == seconds


def test_first_come_first_served_until_there_is_no_place():
    hold, outcomes, places = Hold(), [], ["a", "b"]
    for name in "xyz":
        hold.admit(ticket(name, outcomes), model(queue_limit=9), lambda _: None, ready=0, retry_after_s=1)
    hold.serve(lambda _: places.pop(0) if places else None)
    assert outcomes == [("x", "a"), ("y", "b")]
    assert len(hold) == 1


def test_nobody_passes_the_line_and_the_line_is_bounded():
    hold, outcomes = Hold(), []
    hold.admit(ticket("first", outcomes), model(), lambda _: None, ready=1, retry_after_s=1)
    hold.admit(ticket("second", outcomes), model(), lambda _: "free", ready=1, retry_after_s=1)
    assert outcomes == []  # a place came free in between, but it is the first one's
    with pytest.raises(QueueFull) as caught:
        hold.admit(ticket(), model(), lambda _: None, ready=1, retry_after_s=7)
    assert caught.value.headers() == [(b"retry-after", b"7")]


def test_a_queue_limit_of_zero_still_serves_whoever_need_not_wait():
    outcomes = []
    Hold().admit(ticket("t", outcomes), model(queue_limit=0), lambda _: "a", ready=1, retry_after_s=1)
    assert outcomes == [("t", "a")]


def test_a_request_whose_pod_died_goes_first_even_past_the_limit():
    hold, outcomes = Hold(), []
    for name in "xy":
        hold.admit(ticket(name, outcomes), model(), lambda _: None, ready=0, retry_after_s=1)
    hold.readmit(ticket("again", outcomes))
    places = ["a"]
    hold.serve(lambda _: places.pop() if places else None)
    assert outcomes == [("again", "a")]


def test_only_those_past_their_deadline_are_refused():
    hold, outcomes = Hold(), []
    for name, deadline_s in (("late", 10.0), ("early", 20.0)):
        late = ticket(name, outcomes, deadline_s=deadline_s)
        hold.admit(late, model(), lambda _: None, ready=0, retry_after_s=1)
    hold.expire(10.0, "ns/m", 3)
    assert [(name, type(what)) for name, what in outcomes] == [("late", WaitedTooLong)]
    assert outcomes[0][1].retry_after_s == 3


@pytest.mark.parametrize(("state", "expect"), [("Failed", ModelFailed), ("Suspended", ModelSuspended)])
def test_those_who_wait_learn_at_once_that_it_is_in_vain(state, expect):
    hold, outcomes = Hold(), []
    hold.admit(ticket("t", outcomes), model(), lambda _: None, ready=0, retry_after_s=1)
    hold.review(model("Waking"), "ns/m", ready=0, retry_after_s=1)
    assert outcomes == []
    hold.review(model(state), "ns/m", ready=0, retry_after_s=1)
    assert [type(what) for _, what in outcomes] == [expect]
    assert len(hold) == 0
