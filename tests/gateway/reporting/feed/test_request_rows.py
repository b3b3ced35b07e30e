"""Rows of finished requests: their waits, and the limits that refused them."""

from __future__ import annotations

import threading

import pytest


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
    ("state", "cold_start", "code", "is_woken"),
    [
        ("Asleep", {"maxWaitSeconds": 0.05}, "wait_expired", True),
        ("Asleep", {"mode": "Reject"}, "model_asleep", False),  # it wakes, but the request has not waited
        ("Suspended", {}, "model_suspended", False),
        ("Failed", {}, "model_failed", False),
    ],
)
def test_a_request_that_no_pod_took_has_its_refusal(world, rows, state, cold_start, code, is_woken):
    world.model("m", state=state, coldStart=cold_start)
    assert world.start().post().status_code == 503
    (row,) = rows(1)
    assert (row["code"], row["isWoken"]) == (code, is_woken)
    assert row["queueSeconds"] == pytest.approx(row["seconds"], abs=1e-4)


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
