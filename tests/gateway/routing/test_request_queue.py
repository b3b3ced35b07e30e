"""Request queue: admission, order and deadlines as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wisp_gateway.discovery.snapshot import ColdStart, Model
from wisp_gateway.errors import ModelFailed, ModelSuspended, QueueFull, WaitedTooLong
from wisp_gateway.routing.request_queue import QueuedRequest, RequestQueue, refuse_wait, retry_after


def model(state="Asleep", mode="Hold", queue_limit=2):
    return Model("ns", "m", "m", state, reason="Why", cold_start=ColdStart(mode, 10, 1, queue_limit))


def request(name="t", outcomes=None, entered_s=0.0, deadline_s=10.0):
    results = outcomes if outcomes is not None else []
    return QueuedRequest(None, entered_s, deadline_s, lambda result: results.append((name, result)))


@pytest.mark.parametrize(
    ("state", "mode", "ready", "is_held", "code"),
    [
        ("Asleep", "Hold", 0, False, None),
        ("Waking", "Hold", 0, False, None),
        ("Ready", "Hold", 0, False, None),  # outdated snapshot: its pod just died
        ("Ready", "Hold", 1, False, None),
        ("Asleep", "Reject", 0, False, "model_asleep"),
        ("Asleep", "Reject", 0, True, None),  # admitted while a pod was ready: the mode is about cold starts
        ("Ready", "Reject", 1, False, None),  # all busy: a queue, not a cold start
        ("Failed", "Hold", 0, False, "model_failed"),
        ("Failed", "Hold", 0, True, "model_failed"),
        ("Failed", "Hold", 1, False, None),  # one pod of two still answers
        ("Suspended", "Hold", 0, False, "model_suspended"),
        ("Suspended", "Hold", 1, True, "model_suspended"),  # outranks pods that still drain
    ],
)
def test_refusals_by_state_and_mode(state, mode, ready, is_held, code):
    refusal = refuse_wait(model(state, mode), ready=ready, retry_after_s=7, is_held=is_held)
    assert (refusal.code if refusal else None) == code


@pytest.mark.parametrize(
    ("reason", "verdict", "is_final"),
    [
        ("SourceUnreachable", "Fits", False),
        ("DoesNotFit", "Unknown", False),  # a pod measured it: memory may become free
        ("DoesNotFit", "Fits", False),
        ("DoesNotFit", "DoesNotFit", True),  # computed for the device as it is: no pod is made
        ("ModelNotFound", "", True),
        ("ModelUnsupported", "Unsupported", True),
    ],
)
def test_a_client_is_not_asked_to_try_again_where_only_a_change_of_the_model_helps(reason, verdict, is_final):
    failed = replace(model("Failed"), reason=reason, fit_verdict=verdict, message="fits with maxContext 512.")
    refusal = refuse_wait(failed, ready=0, retry_after_s=7)
    assert dict(refusal.headers()) == ({b"x-should-retry": b"false"} if is_final else {b"retry-after": b"7"})
    cannot = "cannot start" if is_final else "cannot start now"
    assert refusal.message == f"Model {failed.key} {cannot}: {reason}: fits with maxContext 512."


@pytest.mark.parametrize(
    ("expected_s", "elapsed_s", "seconds"),
    [
        (None, 0, 10),  # no cold start yet
        (4.2, 0, 5),
        (4.2, 3, 2),
        (4.2, 20, 20),  # overdue: a wake that hangs is not asked for again every second
        (4.2, 100, 60),
        (None, 20.2, 21),
        (900, 0, 60),  # the SDKs do not retry after over two minutes
    ],
)
def test_retry_after_is_what_is_left_of_the_usual_time(expected_s, elapsed_s, seconds):
    assert retry_after(expected_s=expected_s, elapsed_s=elapsed_s) == seconds


@pytest.mark.parametrize(
    ("arrivals", "served"),
    [
        # name, arrival in seconds, answers, priority
        ([("a", 0, 1, "normal"), ("b", 1, 1, "normal")], "ab"),
        ([("a", 0, 1, "low"), ("b", 1, 1, "normal"), ("c", 2, 1, "high")], "cba"),
        ([("a", 0, 1, "unknown"), ("b", 1, 1, "low")], "ab"),
        ([("a", 0, 32, "normal"), ("b", 1, 1, "normal")], "ba"),  # an answer passes 32 answers
        ([("a", 0, 32, "normal"), ("b", 9, 1, "normal")], "ab"),  # for some seconds, not for ever
        ([("a", 0, 1, "low"), ("b", 31, 1, "normal")], "ab"),
        ([("a", 0, 4096, "low"), ("b", 91, 1, "high")], "ab"),  # no class and no size starves another
    ],
)
def test_the_queue_ranks_by_arrival_priority_and_number_of_answers(arrivals, served):
    queue, outcomes = RequestQueue(), []
    for name, entered_s, sequences, priority in arrivals:
        queued = request(name, outcomes, entered_s)
        queued.sequences, queued.priority = sequences, priority
        queue.admit(queued, model(queue_limit=9), lambda _: None, ready=0, retry_after_s=1)
    queue.dispatch(lambda _: "pod")
    assert "".join(name for name, _ in outcomes) == served


@pytest.mark.parametrize(
    ("arrivals", "served"),
    [
        # name, arrival in seconds, account
        ([("a", 0, "one"), ("b", 0, "one"), ("c", 0, "one")], "abc"),
        ([("a", 0, "one"), ("b", 0, "one"), ("c", 0.1, "two")], "acb"),  # not behind all of another's
        ([("a", 0, "one"), ("b", 0.3, "one"), ("c", 1.0, "two")], "abc"),  # nor before who came first
        ([*((name, 0, "one") for name in "abcd"), ("e", 0.2, "two"), ("f", 0.2, "two")], "aebfcd"),
        ([*(("a", 0, "one") for _ in range(200)), ("b", 31, "two")], "a" * 200 + "b"),  # for 30 s at most
    ],
)
def test_many_requests_of_one_account_let_others_pass(arrivals, served):
    queue, outcomes = RequestQueue(), []
    for name, entered_s, account in arrivals:
        queued = request(name, outcomes, entered_s)
        queued.account = account
        queue.admit(queued, model(queue_limit=999), lambda _: None, ready=0, retry_after_s=1)
    queue.dispatch(lambda _: "pod")
    assert "".join(name for name, _ in outcomes) == served


def test_an_account_that_fills_the_queue_gives_up_its_last_places_to_others():
    queue, outcomes = RequestQueue(), []

    def admit(name, account, entered_s):
        queued = request(name, outcomes, entered_s)
        queued.account = account
        queue.admit(queued, model(queue_limit=4), lambda _: None, ready=1, retry_after_s=7)

    for name in "abcd":
        admit(name, "one", 0.0)
    for name in "xy":
        admit(name, "two", 1.0)
    assert [(name, type(result)) for name, result in outcomes] == [("d", QueueFull), ("c", QueueFull)]
    for account in ("one", "two", "one"):  # as many as the other: its own places, not more
        with pytest.raises(QueueFull):
            admit("z", account, 2.0)
    queue.dispatch(lambda _: "pod")
    assert [name for name, _ in outcomes[2:]] == ["a", "b", "x", "y"]


def test_first_come_first_served_until_every_slot_is_taken():
    queue, outcomes, endpoints = RequestQueue(), [], ["a", "b"]
    for name in "xyz":
        queue.admit(request(name, outcomes), model(queue_limit=9), lambda _: None, ready=0, retry_after_s=1)
    queue.dispatch(lambda _: endpoints.pop(0) if endpoints else None)
    assert outcomes == [("x", "a"), ("y", "b")]
    assert len(queue) == 1


def test_a_new_request_never_overtakes_and_the_queue_is_bounded():
    queue, outcomes = RequestQueue(), []
    queue.admit(request("first", outcomes), model(), lambda _: None, ready=1, retry_after_s=1)
    queue.admit(request("second", outcomes), model(), lambda _: "free", ready=1, retry_after_s=1)
    assert outcomes == []  # a slot became free in between, but it is the first request's
    with pytest.raises(QueueFull) as caught:
        queue.admit(request(), model(), lambda _: None, ready=1, retry_after_s=7)
    assert caught.value.headers() == [(b"retry-after", b"7")]


def test_a_queue_limit_of_zero_still_serves_requests_that_need_not_wait():
    outcomes = []
    RequestQueue().admit(
        request("t", outcomes), model(queue_limit=0), lambda _: "a", ready=1, retry_after_s=1
    )
    assert outcomes == [("t", "a")]


def test_a_request_whose_pod_died_goes_first_even_past_the_limit():
    queue, outcomes = RequestQueue(), []
    for name in "xy":
        queue.admit(request(name, outcomes), model(), lambda _: None, ready=0, retry_after_s=1)
    queue.requeue_front(request("again", outcomes))
    endpoints = ["a"]
    queue.dispatch(lambda _: endpoints.pop() if endpoints else None)
    assert outcomes == [("again", "a")]


def test_only_requests_past_their_deadline_are_refused():
    queue, outcomes = RequestQueue(), []
    for name, deadline_s in (("late", 10.0), ("early", 20.0)):
        late = request(name, outcomes, deadline_s=deadline_s)
        queue.admit(late, model(), lambda _: None, ready=0, retry_after_s=1)
    queue.expire(10.0, "ns/m", 3)
    assert [(name, type(result)) for name, result in outcomes] == [("late", WaitedTooLong)]
    assert outcomes[0][1].retry_after_s == 3


@pytest.mark.parametrize(("state", "expect"), [("Failed", ModelFailed), ("Suspended", ModelSuspended)])
def test_queued_requests_are_refused_at_once_when_the_model_cannot_come(state, expect):
    queue, outcomes = RequestQueue(), []
    queue.admit(request("t", outcomes), model(), lambda _: None, ready=0, retry_after_s=1)
    queue.revalidate(model("Waking"), "ns/m", ready=0, retry_after_s=1)
    assert outcomes == []
    queue.revalidate(model(state), "ns/m", ready=0, retry_after_s=1)
    assert [type(result) for _, result in outcomes] == [expect]
    assert len(queue) == 0
