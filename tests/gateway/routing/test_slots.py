"""Slots of a pod through the gateway: a request counts as the answers that it asks for."""

from __future__ import annotations

import threading

import pytest


@pytest.mark.parametrize(
    "large",
    [
        {"model": "m", "messages": [], "n": 64},
        {"model": "m", "prompt": ["one"] * 8, "n": 8},
        {"model": "m", "prompt": [[1, 2], [3]] * 32},
    ],
)
def test_small_requests_go_where_no_large_one_runs(world, large):
    may_answer = threading.Event()
    pods = [world.pod(world.does.talk_once(may_answer)) for _ in range(2)]
    world.model("m", *pods, routing="LeastLoad", targetConcurrency=8)
    world.start()
    path = "/v1/chat/completions" if "messages" in large else "/v1/completions"
    first = world.background(lambda: world.post(path, json=large))
    world.until(lambda: any(pod.seen for pod in pods))
    busy, calm = sorted(pods, key=lambda pod: -len(pod.seen))
    small = [world.background(world.post) for _ in range(5)]
    world.until(lambda: len(busy.seen) + len(calm.seen) == 6)
    assert (len(busy.seen), len(calm.seen)) == (1, 5)
    may_answer.set()
    assert {asked.result(60).status_code for asked in [first, *small]} == {200}


def test_a_large_request_leaves_most_of_a_pod_to_others(world):
    may_answer = threading.Event()
    pod = world.pod(world.does.talk_once(may_answer))
    world.model("m", pod, targetConcurrency=8)
    world.start()
    asked = [world.background(lambda: world.post(json={"model": "m", "messages": [], "n": 128}))]
    world.until(lambda: len(pod.seen) == 1)
    asked += [world.background(world.post) for _ in range(8)]
    world.until(lambda: len(pod.seen) == 7)
    world.until(lambda: world.state()["waiting"] == 2)
    may_answer.set()
    assert {answer.result(60).status_code for answer in asked} == {200}
