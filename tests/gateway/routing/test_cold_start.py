"""Models at zero: requests wait, the operator gets demand, the first ready pod serves."""

from __future__ import annotations

import json
import threading
import time

import httpx
import pytest

from wisp_gateway.reporting import demand


class Operator:
    """Collects the demand that the gateway posts."""

    def __init__(self, world, status=204):
        self.reports = []

        async def handle(pod, seen, writer):
            self.reports.append(seen.json)
            writer.write(world.answer(status, b""))

        self.pod = world.pod(handle)
        self.url = f"http://{self.pod.address}/demand"

    def last(self, name="m"):
        return self.reports[-1]["models"][f"default/{name}"]


def test_a_request_wakes_and_is_served_as_soon_as_the_pod_answers(world, monkeypatch):
    operator = Operator(world)
    pod = world.pod()
    pod.is_ready = False
    world.model("m", state="Asleep")
    world.start(demand_url=operator.url, name="gw-7")
    world.until(lambda: operator.reports)
    assert operator.last() == {"waiting": 0, "running": 0, "arrivals": 0, "idleSeconds": None, "ready": 0}
    monkeypatch.setattr(demand, "PERIOD_S", 300.0)
    before = len(operator.reports)
    world.until(lambda: len(operator.reports) > before)  # the last by the second
    count = len(operator.reports)
    waiting = world.background(world.chat)
    world.until(lambda: any(report["models"]["default/m"]["waiting"] for report in operator.reports[count:]))
    assert operator.reports[-1]["gateway"] == "gw-7"
    world.model("m", pod, state="Waking", ready=False, phase="weights", progress=0.5)
    assert (world.state()["state"], world.state()["phase"], world.state()["waiting"]) == (
        "Waking",
        "weights",
        1,
    )
    pod.is_ready = True  # not yet in the snapshot
    assert waiting.result(60).choices[0].message.content == "complete"
    assert world.state()["state"] == "Ready"
    assert 0 < world.state()["lastColdStartSeconds"] < 60
    monkeypatch.setattr(demand, "PERIOD_S", 0.1)
    world.call(world.gateway._demand.post_now)  # the wait for the next report has begun with the long period
    world.until(lambda: operator.last()["idleSeconds"])
    assert operator.last()["arrivals"] == 1


def test_the_demand_comes_every_second_and_counts_running_requests(world):
    operator = Operator(world)
    world.model("m", world.pod(world.does.talk(words=100, gap_s=0.05)))
    stream = world.start(demand_url=operator.url).chat(stream=True)
    world.until(lambda: operator.reports and operator.last()["running"] == 1)
    assert operator.last()["idleSeconds"] == 0.0
    stream.close()
    world.until(lambda: operator.last()["running"] == 0)


@pytest.mark.parametrize("status", [None, 500])
def test_without_an_operator_ready_pods_are_served(world, status):
    operator = Operator(world, status or 204)
    if status is None:
        world.do(operator.pod.kill())
    world.model("m", world.pod())
    world.start(demand_url=operator.url)
    assert world.post().status_code == 200


@pytest.mark.parametrize(("status", "is_said"), [(None, True), (500, True), (204, False)])
def test_a_request_that_waited_in_vain_gets_to_know_whether_an_operator_answers(world, status, is_said):
    operator = Operator(world, status or 204)
    if status is None:
        world.do(operator.pod.kill())
    world.model("m", state="Asleep", coldStart={"maxWaitSeconds": 0.3})
    world.start(demand_url=operator.url)
    world.until(lambda: world.gateway.registry.is_operator_away() == is_said)
    error = world.post().json()["error"]
    assert error["code"] == "wait_expired"
    assert ("no operator takes this gateway's reports" in error["message"]) == is_said


def test_reject_answers_at_once_and_still_wakes(world, monkeypatch):
    monkeypatch.setattr(demand, "PERIOD_S", 300.0)
    operator = Operator(world)
    world.model("m", state="Asleep", coldStart={"mode": "Reject"})
    world.start(demand_url=operator.url)
    world.until(lambda: operator.reports)
    answer = world.post()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_asleep")
    assert int(answer.headers["retry-after"]) >= 1
    world.until(lambda: operator.last()["arrivals"] == 1)
    assert operator.last()["idleSeconds"] is not None


def test_suspended_is_refused_and_not_woken(world):
    operator = Operator(world)
    world.model("m", state="Suspended")
    answer = world.start(demand_url=operator.url).post()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_suspended")
    world.until(lambda: operator.reports)
    assert operator.last()["arrivals"] == 0


def test_past_the_bound_429_and_past_the_wait_503(world):
    world.model("m", state="Asleep", coldStart={"queueLimit": 2, "maxWaitSeconds": 0.6})
    world.start()
    held = [world.background(world.post) for _ in range(2)]
    world.until(lambda: world.state()["waiting"] == 2)
    third = world.post()
    assert (third.status_code, third.json()["error"]["type"]) == (429, "rate_limit_error")
    assert int(third.headers["retry-after"]) >= 1
    for answer in (waiting.result(60) for waiting in held):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "wait_expired")
        assert int(answer.headers["retry-after"]) >= 1
    assert world.state()["waiting"] == 0


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"state": "Failed", "reason": "DoesNotFit", "message": "needs 17 GiB"}, 503, "model_failed"),
        ({"state": "Suspended"}, 503, "model_suspended"),
        (None, 404, "model_not_found"),
    ],
)
def test_queued_requests_are_refused_when_the_model_will_not_come(world, change, status, code):
    world.model("m", state="Waking")
    held = world.start().background(world.post)
    world.until(lambda: world.state()["waiting"] == 1)
    world.remove("default/m") if change is None else world.model("m", **change)
    assert (held.result(60).status_code, held.result().json()["error"]["code"]) == (status, code)


def test_an_endpoint_removed_while_requests_are_queued_gets_none(world):
    gone, new = world.pod(), world.pod()
    gone.is_ready = new.is_ready = False
    world.model("m", gone, state="Waking", ready=False)
    held = world.start().background(world.post)
    world.until(lambda: world.state()["waiting"] == 1)
    world.model("m", new, state="Waking", ready=False)
    gone.is_ready = new.is_ready = True
    assert held.result(60).status_code == 200
    assert (len(gone.seen), len(new.seen)) == (0, 1)


def test_a_client_that_disconnects_while_queued_frees_its_place(world):
    world.model("m", state="Asleep", coldStart={"queueLimit": 1})
    world.start()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{world.url}/v1/completions", json={"model": "m"}, timeout=0.3)
    world.until(lambda: world.state()["waiting"] == 0)
    held = world.background(world.post)  # would be a 429
    world.until(lambda: world.state()["waiting"] == 1)
    world.model("m", world.pod())
    assert held.result(60).status_code == 200


def test_one_models_queue_does_not_delay_another(world):
    world.model("asleep", state="Asleep", coldStart={"maxWaitSeconds": 300})
    world.model("m", world.pod())
    world.start()
    for _ in range(20):
        world.background(
            lambda: httpx.post(f"{world.url}/v1/completions", json={"model": "asleep"}, timeout=600)
        )
    world.until(lambda: world.state("asleep")["waiting"] == 20)
    assert world.post().status_code == 200
    assert world.state("asleep")["waiting"] == 20
    world.remove("default/asleep")


def test_a_request_whose_timer_fires_early_is_answered_all_the_same(world):
    """uvloop's timers count whole milliseconds: on a busy loop 11 of 6,000 fired up to 0.3 ms early."""
    world.model("m", state="Asleep", coldStart={"maxWaitSeconds": 0.2})
    world.start().gateway.registry.find("m")._clock = lambda: time.monotonic() - 0.01
    assert world.post().status_code == 503


def test_beyond_target_concurrency_requests_queue_in_the_gateway_in_order(world):
    proceed = threading.Event()
    pod = world.pod(world.does.talk_once(proceed))
    world.model("m", pod, targetConcurrency=2)
    world.start()
    answers = []
    for index in range(5):
        answers.append(
            world.background(lambda index=index: world.post(json={"model": "m", "prompt": str(index)}))
        )
        world.until(lambda index=index: world.state()["arrivals"] == index + 1)
    assert world.state()["running"] == 2
    assert world.state()["waiting"] == 3
    proceed.set()
    assert [answer.result(60).status_code for answer in answers] == [200] * 5
    assert [seen.json["prompt"] for seen in pod.seen] == list("01234")


def test_a_draining_pod_finishes_but_gets_nothing_new(world):
    old, new = world.pod(world.does.talk(words=4, gap_s=0.1)), world.pod()
    world.model("m", old)
    stream = world.start().chat(stream=True)
    next(stream)
    document = {"namespace": "default", "name": "m", "state": "Ready"}
    endpoints = [
        {"id": "old", "address": old.address, "ready": True, "draining": True},
        {"id": "new", "address": new.address, "ready": True},
    ]
    world.publish([{**document, "endpoints": endpoints}])
    assert world.post().status_code == 200
    assert (len(old.seen), len(new.seen)) == (1, 1)
    assert world.text_of(stream) == "w1 w2 w3 "


def test_heartbeats_come_at_their_interval_and_name_the_phase(world):
    heartbeat = {"heartbeatSeconds": 0.2, "maxWaitSeconds": 0.9}
    world.model("m", state="Waking", phase="weights", coldStart=heartbeat)
    world.start()
    body = {"model": "m", "prompt": "x", "stream": True}
    with httpx.stream("POST", f"{world.url}/v1/completions", json=body, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert set(lines[:-1]) == {": waking weights"}
    assert 1 <= len(lines[:-1]) <= 4  # at 0.2, 0.4, 0.6 and 0.8 s
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "wait_expired"
