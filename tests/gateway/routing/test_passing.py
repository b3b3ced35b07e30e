"""Requests that pass others in the queue, because their own pod is free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wisp_gateway.discovery.snapshot import ColdStart, Model
from wisp_gateway.routing.request_queue import (
    MAX_LOOKED_AT,
    MAX_TIMES_PASSED,
    QueuedRequest,
    RequestQueue,
)

MODEL = Model("ns", "m", "m", "Ready", cold_start=ColdStart("Hold", 10, 1, 1000))


class Pods:
    """Free slots of pods; a request takes the one that it is given."""

    def __init__(self) -> None:
        self.free: list[str] = []
        self.served: list[tuple[str, str]] = []
        self.queue = RequestQueue()
        self._homes: dict[QueuedRequest, str] = {}

    def wait(self, name: str, home: str = "", **more: str) -> None:
        """Queue a request; ``home``: the pod that has its prefix."""
        asked = QueuedRequest(None, 0.0, 10.0, lambda pod: self._serve(name, pod), **more)
        self._homes[asked] = home
        self.queue.admit(asked, MODEL, lambda _: None, ready=1, retry_after_s=1)

    def release(self, pod: str) -> None:
        """Free a slot and dispatch."""
        self.free.append(pod)
        self.queue.dispatch(self._select, self._prefer)

    def _serve(self, name: str, pod: str) -> None:
        self.free.remove(pod)
        self.served.append((name, pod))

    def _select(self, asked: QueuedRequest) -> str | None:
        free = [pod for pod in self.free if asked.bound_to in (None, pod)]
        return free[0] if free else None

    def _prefer(self, asked: QueuedRequest) -> str | None:
        home = self._homes[asked]
        return self._select(asked) if not home else home if home in self.free else None


@pytest.mark.parametrize(
    ("homes", "priorities", "expect"),
    [
        (("x", "x"), "nn", "first"),  # nobody's home is free: the first goes, and no slot stays empty
        (("x", "a"), "nn", "second"),
        (("a", "a"), "nn", "first"),
        (("", "a"), "nn", "first"),  # any pod suits it
        (("x", ""), "nn", "second"),
        (("x", "a"), "hn", "first"),  # a lower priority passes nobody
    ],
)
def test_a_request_whose_pod_is_full_lets_those_pass_whose_pod_is_free(homes, priorities, expect):
    pods = Pods()
    for name, home, priority in zip(("first", "second"), homes, priorities, strict=True):
        pods.wait(name, home, priority={"n": "normal", "h": "high"}[priority])
    pods.release("a")
    assert pods.served == [(expect, "a")]


def test_a_request_is_passed_a_bounded_number_of_times():
    pods = Pods()
    pods.wait("first", "x")
    for number in range(MAX_TIMES_PASSED + 10):
        pods.wait(f"late {number}", "a")
    for _ in range(MAX_TIMES_PASSED + 1):
        pods.release("a")
    assert pods.served[-1] == ("first", "a")


def test_a_request_that_continues_a_response_waits_for_its_pod_and_holds_up_nobody():
    pods = Pods()
    pods.wait("bound", bound_to="b")
    for name in ("second", "third"):
        pods.wait(name)
    pods.release("a")
    assert pods.served == [("second", "a")]
    pods.release("b")
    assert pods.served == [("second", "a"), ("bound", "b")]


def test_requests_bound_to_a_busy_pod_in_any_number_hide_no_other():
    pods = Pods()
    for number in range(3 * MAX_LOOKED_AT):
        pods.wait(f"bound {number}", bound_to="b")
    pods.wait("first")
    pods.wait("second")
    pods.release("a")
    pods.release("a")
    assert pods.served == [("first", "a"), ("second", "a")]
    pods.release("b")
    assert pods.served[2:] == [("bound 0", "b")]


def test_a_request_goes_at_once_while_only_bound_ones_wait():
    pods = Pods()
    pods.wait("bound", bound_to="b")
    pods.free.append("a")
    served = []
    asked = QueuedRequest(None, 0.0, 10.0, served.append)
    pods.queue.admit(asked, MODEL, lambda _: "a", ready=2, retry_after_s=1)
    assert (served, len(pods.queue)) == (["a"], 1)


@pytest.mark.parametrize("pods_bound_to", [1, 3000])
def test_a_free_slot_costs_a_bounded_number_of_looks_however_many_are_bound(pods_bound_to):
    queue, looks = RequestQueue(), []
    model = replace(MODEL, cold_start=ColdStart("Hold", 10, 1, 10_000))
    for number in range(3000):
        asked = QueuedRequest(None, 0.0, 10.0, looks.append, bound_to=f"pod {number % pods_bound_to}")
        queue.admit(asked, model, lambda _: None, ready=1, retry_after_s=1)
    queue.dispatch(lambda asked: looks.append(asked))
    assert 1 <= len(looks) <= 2 * MAX_LOOKED_AT


def test_bound_requests_expire_leave_and_are_refused_as_others_do():
    queue, results = RequestQueue(), []
    for number, deadline_s in enumerate([10.0, 20.0, 20.0, 20.0]):
        asked = QueuedRequest(None, 0.0, deadline_s, results.append, bound_to=f"pod {number % 2}")
        queue.admit(asked, MODEL, lambda _: None, ready=1, retry_after_s=1)
    queue.expire(15.0, "ns/m", 1)
    assert [type(result).__name__ for result in results] == ["WaitedTooLong"]
    queue.cancel(asked)
    queue.cancel(asked)
    assert len(queue) == 2
    queue.revalidate(None, "ns/m", ready=1, retry_after_s=1)
    assert [type(result).__name__ for result in results[1:]] == ["ModelNotFound"] * 2
    assert len(queue) == 0
