"""Rows of finished requests: their waits, and the limits that refused them."""

from __future__ import annotations

import threading

import pytest

from wisp_gateway.inbound.byte_budget import ByteBudget
from wisp_gateway.inbound.client import Client
from wisp_gateway.reporting.feed.documents import request_row
from wisp_gateway.upstream.proxy import Proxy


@pytest.fixture
def rows(world):
    """Reader of the rows, oldest first, once there are so many."""

    def read(count, **headers):
        def history():
            return world.http.get(f"{world.url}/state/history", headers=headers).json()["requests"]

        return world.until(lambda: len(rows := history()) == count and rows)

    return read


def test_a_request_that_waits_for_a_wake_says_so_and_how_long(world, rows):
    world.model("m", state="Asleep")
    asked = world.start().background(world.post)
    world.until(lambda: world.state()["waiting"])
    world.model("m", world.pod())
    assert asked.result(60).status_code == 200
    world.post()
    woken, served = rows(2)
    assert (woken["isWoken"], woken["code"], woken["limit"]) == (True, None, None)
    assert 0 < woken["queueSeconds"] <= woken["seconds"]
    assert not served["isWoken"]
    assert 0 <= served["queueSeconds"] <= served["seconds"]


@pytest.mark.parametrize(
    ("state", "cold_start", "code", "has_waited"),
    [
        ("Asleep", {"maxWaitSeconds": 0.05}, "wait_expired", True),
        ("Asleep", {"mode": "Reject"}, "model_asleep", False),  # it wakes, but the request has not waited
        ("Suspended", {}, "model_suspended", False),
        ("Failed", {}, "model_failed", False),
    ],
)
def test_a_request_that_no_pod_took_has_its_refusal(world, rows, state, cold_start, code, has_waited):
    world.model("m", state=state, coldStart=cold_start)
    assert world.start().post().status_code == 503
    (row,) = rows(1)
    assert (row["code"], row["isWoken"], row["queueSeconds"] is not None) == (code, has_waited, has_waited)


@pytest.mark.parametrize(
    ("becomes", "code"),
    [("Failed", "model_failed"), ("Suspended", "model_suspended"), (None, "model_not_found")],
)
def test_a_request_has_waited_for_a_wake_whatever_came_of_it_and_one_refused_at_once_has_not(
    world, rows, becomes, code
):
    world.model("m", state="Asleep", coldStart={"queueLimit": 1})
    held = world.start().background(world.post)
    world.until(lambda: world.state()["waiting"])
    assert world.post().status_code == 429
    world.model("m", state=becomes) if becomes else world.remove("default/m")
    assert held.result(60).status_code in (404, 503)
    refused, waited = rows(2)
    assert (refused["code"], refused["isWoken"], refused["queueSeconds"]) == ("queue_full", False, None)
    assert (waited["code"], waited["isWoken"]) == (code, True)
    assert 0 < waited["queueSeconds"] <= waited["seconds"]


@pytest.mark.parametrize(
    ("held_s", "waited_for_wake", "queue_s"),
    [
        (2.5, False, 0.5),
        (None, True, 1.0),  # to its end
        (None, None, None),
        (2.0, False, 0.0),
    ],
)
def test_an_upload_is_no_wait_in_the_queue(held_s, waited_for_wake, queue_s):
    extensions = {"wisp.protocol": {"connection": None}}
    scope = {"method": "POST", "path": "/v1/completions", "raw_path": b"", "query_string": b"", "headers": []}
    client = Client(scope | {"extensions": extensions}, None, None, ByteBudget(1))
    client.received_s = client.entered_s + 2.0
    client.queue_s, client.waited_for_wake = held_s, waited_for_wake
    assert request_row(client, 3.0)["queueSeconds"] == pytest.approx(queue_s)


def test_a_bug_of_the_gateway_has_its_code(world, rows, monkeypatch):
    async def fail(*_):
        raise RuntimeError("bug")

    monkeypatch.setattr(Proxy, "serve", fail)
    world.model("m", world.pod())
    assert world.start().post().status_code == 500
    (row,) = rows(1)
    assert (row["status"], row["code"]) == (500, "internal_error")


@pytest.mark.parametrize("limit", ["rpm=1", "tpm=1", "concurrent=1"])
def test_a_request_over_a_keys_limit_names_the_limit_and_never_waited(world, rows, limit):
    keys = world.tmp_path / "keys"
    keys.write_text(f"a:sk-a {limit}\n")
    may_answer = threading.Event()
    world.model("m", world.pod(world.does.talk_once(may_answer)))
    world.start(api_keys=keys)
    mine = {"authorization": "Bearer sk-a"}
    first = world.background(lambda: world.post(headers=mine))
    world.until(lambda: world.pods[0].seen)
    assert world.post(headers=mine).status_code == 429
    (row,) = rows(1, **mine)
    assert (row["code"], row["limit"]) == ("rate_limit_exceeded", limit.partition("=")[0])
    assert (row["queueSeconds"], row["isWoken"]) == (None, False)
    may_answer.set()
    assert first.result(60).status_code == 200
