"""Traces of requests that wait for one wake: reported to the operator, and linked to the first."""

from __future__ import annotations

from functools import partial

import pytest
from trace_collector import collecting

SCHEDULED = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_SERVICE_NAME": ""}


def traceparent(number, flags="01"):
    return f"00-{number:032x}-{number:016x}-{flags}"


@pytest.fixture
def asleep(world):
    """A gateway's model without pods, and the operator's replica that gets its demand."""
    operator = world.pod(_take)
    world.model("m", state="Asleep", coldStart={"maxWaitSeconds": 60})
    return world, operator


async def _take(pod, seen, writer):
    writer.write(b"HTTP/1.1 204 X\r\n\r\n")


def reported(operator):
    """The last demand for the model."""
    return operator.seen[-1].json["models"]["default/m"] if operator.seen else {"waiting": 0}


def wait_in_turn(world, operator, *headers):
    """Have requests with these headers wait, one after the other is known to the operator."""
    futures = []
    for number, header in enumerate(headers, 1):
        futures.append(world.background(partial(world.post, headers={"traceparent": header})))
        world.until(lambda number=number: reported(operator)["waiting"] == number)
    return futures


def test_requests_that_wait_for_one_wake_are_linked_to_the_first_which_it_is_a_part_of(asleep, monkeypatch):
    world, operator = asleep
    for name, value in SCHEDULED.items():
        monkeypatch.setenv(name, value)
    with collecting() as collector:
        world.start(demand_url=f"http://{operator.address}/demand", otlp_endpoint=collector.url)
        waiting = wait_in_turn(world, operator, *map(traceparent, (1, 2)))
        traces = reported(operator)["traces"]
        world.model("m", world.pod(), state="Ready")
        assert [future.result(60).status_code for future in waiting] == [200, 200]
        world.post(headers={"traceparent": traceparent(3)})  # waits for no wake
        queues = world.until(lambda: spans(collector, "queue", 3))
        requests = spans(collector, "POST /v1/chat/completions", 3)
    assert [text.split("-")[1:3] for text in traces] == [[span["trace"], span["id"]] for span in requests[:2]]
    assert [span["links"] for span in queues] == [[], [requests[0]["trace"]], []]


def test_requests_that_no_pod_took_show_their_wait_and_the_wake_that_failed(asleep, monkeypatch):
    world, operator = asleep
    for name, value in SCHEDULED.items():
        monkeypatch.setenv(name, value)
    with collecting() as collector:
        world.start(demand_url=f"http://{operator.address}/demand", otlp_endpoint=collector.url)
        waiting = wait_in_turn(world, operator, *map(traceparent, (1, 2)))
        world.model("m", state="Failed", reason="OOMKilled")
        assert [future.result(60).status_code for future in waiting] == [503, 503]
        queues = world.until(lambda: spans(collector, "queue", 2))
        requests = spans(collector, "POST /v1/chat/completions", 2)
    assert [span["links"] for span in queues] == [[], [requests[0]["trace"]]]
    assert [span["parent"] for span in queues] == [span["id"] for span in requests]


def spans(collector, name, count):
    """Spans of a name by their trace, once there are so many."""
    found = [span for span in list(collector.spans) if span["name"].endswith(f": {name}")]
    return sorted(found, key=lambda span: span["trace"]) if len(found) == count else []


def test_without_an_endpoint_the_clients_own_trace_is_reported_if_it_is_sampled(asleep):
    world, operator = asleep
    world.start(demand_url=f"http://{operator.address}/demand")
    given = (traceparent(1, "00"), "nonsense", traceparent(4))
    waiting = wait_in_turn(world, operator, *given)
    assert reported(operator)["traces"] == [traceparent(4)]
    world.model("m", world.pod(), state="Ready")
    assert [future.result(60).status_code for future in waiting] == [200] * 3
