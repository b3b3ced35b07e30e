"""Pods that fail: no request is lost before its first byte, no partial answer looks complete."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time

import httpx
import openai
import pytest

from wisp_gateway.routing.response_ids import pod_tag
from wisp_gateway.upstream import proxy
from wisp_gateway.upstream.proxy import beat_interval_s

CHAT = {"model": "m", "messages": []}


def test_a_pod_that_dies_before_the_first_byte_is_replaced_by_another(world):
    dying, healthy = world.pod(world.does.write(then="die")), world.pod()
    world.model("m", dying, healthy, routing="LeastLoad")
    world.start()
    assert [world.chat().choices[0].message.content for _ in range(4)] == ["complete"] * 4
    assert world.metric('wisp_gateway_retries_total{model="default/m"}') == 1


def test_headers_alone_are_no_first_byte(world):
    """The runtime sends its 200 before the first token; a pod that dies in between is replaced too."""
    pod = world.pod(world.does.die_and_return(0.1, 1, world.STREAM_HEAD))
    world.model("m", pod)
    assert world.text_of(world.start().chat(stream=True)) == "w0 w1 w2 w3 w4 "


def test_a_pod_gets_its_models_token_whatever_the_client_sends(world, tmp_path):
    keys = tmp_path / "token-keys"
    keys.write_text(f"{'k' * 32}\n")
    pod = world.pod()
    world.model("m", pod)
    world.start(pod_token_keys=keys).post(headers={"X-Wisp-Token": "forged", "x-wisp-other": "forged"})
    sent = {name: value for name, value in pod.seen[0].headers.items() if name.startswith("x-wisp-")}
    token = hmac.new(b"k" * 32, b"pod:default/m", hashlib.sha256).hexdigest()
    tag = pod_tag("default/m", f"m-{pod.port}")
    own = {"x-wisp-priority": "normal", "x-wisp-pod-tag": tag, "x-wisp-usage": "1"}
    assert sent == own | {"x-wisp-token": token}


def test_a_pod_that_refuses_the_token_is_replaced_by_another(world):
    """As while keys are rotated: a client must not take a pod's 401 for one of its own key."""
    refusing = world.pod(world.does.refuse(401, b'{"error": {"code": "gateway_only"}}'))
    world.model("m", refusing, world.pod(), routing="LeastLoad")
    world.start()
    assert [world.chat().choices[0].message.content for _ in range(3)] == ["complete"] * 3
    world.model("m", refusing)
    answer = world.post()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "pods_refused")
    assert int(answer.headers["retry-after"]) >= 2
    assert "x-should-retry" not in answer.headers  # the SDKs try again, maybe at another gateway


@pytest.mark.parametrize("is_stream", [True, False])
def test_the_only_pod_dies_and_the_request_waits_for_its_return(world, is_stream):
    pod = world.pod(world.does.die_and_return(0.3, 1))
    world.model("m", pod)
    answer = world.start().chat(stream=is_stream)
    assert world.text_of(answer) if is_stream else answer.choices[0].message.content
    assert len(pod.seen) == 2


def test_a_request_that_kills_every_pod_is_given_up(world):
    pod = world.pod(world.does.die_and_return(0.05, 99))
    world.model("m", pod)
    with pytest.raises(openai.InternalServerError, match="2 pods of model default/m ended") as caught:
        world.start().chat(client=world.openai(max_retries=2))
    assert caught.value.status_code == 502
    assert len(pod.seen) == 2  # nor does the SDK begin again


def dies_of(poison, talk):
    """A pod that dies of one request, shortly after it came, and is back soon; others take a moment."""

    async def handle(pod, seen, writer):
        if poison in seen.body:
            await asyncio.sleep(0.1)
            await pod.kill()
            await asyncio.sleep(0.1)
            await pod.start()
            return
        await talk(pod, seen, writer)

    return handle


def test_neighbours_of_a_request_that_kills_pods_are_answered_and_it_kills_no_third(world):
    pods = [world.pod(dies_of(b"poison", world.does.talk(gap_s=0.3))) for _ in range(3)]
    world.model("m", *pods, routing="LeastLoad")
    world.start()
    asks = [world.background(world.post) for _ in range(12)]
    poison = {"model": "m", "messages": [{"role": "user", "content": "poison"}]}
    killer = world.background(lambda: world.post(json=poison))
    assert killer.result(60).status_code == 502
    assert [asked.result(60).status_code for asked in asks] == [200] * 12
    assert sum(b"poison" in seen.body for pod in pods for seen in pod.seen) == 2


def test_a_request_whose_model_and_pod_are_gone_does_not_wait_for_them(world):
    pod = world.pod(world.does.talk(gap_s=300))
    world.model("m", pod)
    asked = world.start().background(world.post)
    world.until(lambda: pod.seen)
    world.remove("default/m")
    world.do(pod.kill())
    answer = asked.result(60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_request_whose_pod_dies_while_its_model_is_created_again_goes_to_the_new_one(world, is_stream):
    old, new = world.pod(world.does.talk(gap_s=300)), world.pod()
    if is_stream:
        old.handler = world.does.write(world.STREAM_HEAD)
    world.model("m", old)
    asked = world.start().background(lambda: world.post(json={**CHAT, "stream": is_stream}))
    world.until(lambda: old.seen)
    world.remove("default/m")
    world.model("m", new, ready=False, state="Waking")
    world.do(old.kill())
    assert asked.result(60).status_code == 200
    assert len(new.seen) == 1


def test_a_model_created_again_with_other_keys_does_not_get_the_old_ones_requests(world, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("somebody-else's\n")
    old, new = world.pod(world.does.talk(gap_s=300)), world.pod()
    world.model("m", old)
    asked = world.start().background(world.post)
    world.until(lambda: old.seen)
    world.remove("default/m")
    world.model("m", new, apiKeysFile=str(keys))
    world.do(old.kill())
    assert asked.result(60).status_code == 401
    assert not new.seen


def test_a_pod_that_is_not_there_costs_no_attempt(world):
    """Connection refused: no pod has seen the request, so it may wait as long as any other."""
    pod = world.pod(is_listening=False)
    world.model("m", pod)
    waiting = world.start().background(world.chat)
    time.sleep(0.5)
    assert not waiting.done()
    world.do(pod.start())
    assert waiting.result(60).choices[0].message.content == "complete"


def test_a_retry_ends_with_max_wait(world):
    pod = world.pod(world.does.die_and_return(300, 1))
    world.model("m", pod, coldStart={"maxWaitSeconds": 0.4})
    began = time.monotonic()
    assert world.start().post().status_code == 503
    assert time.monotonic() - began < 60  # the pod's return


def test_a_503_of_a_pod_is_tried_elsewhere_and_at_last_passed_on(world):
    refusal = b'{"error": {"message": "draining", "type": "server_error", "param": null, "code": "draining"}}'
    refusing = world.pod(world.does.refuse(503, refusal))
    world.model("m", refusing)
    assert world.start().post().json()["error"]["code"] == "draining"
    assert len(refusing.seen) == 3
    world.model("m", refusing, world.pod())
    assert world.post().status_code == 200


def test_a_stream_cut_off_ends_in_an_error_that_the_sdk_raises(world):
    world.model(
        "m", world.pod(world.does.write(world.STREAM_HEAD, world.framed(world.event("half")), then="die"))
    )
    stream = world.start().chat(stream=True)
    assert next(stream).choices[0].delta.content == "half"
    with pytest.raises(openai.APIError, match="stopped in the middle"):
        next(stream)


def test_a_stream_cut_off_inside_an_event_leaves_no_part_of_it(world):
    partial = world.framed(world.event("half") + b'data: {"id": "c", "ob')
    world.model("m", world.pod(world.does.write(world.STREAM_HEAD, partial, gap_s=0.05, then="die")))
    stream = world.start().chat(stream=True)
    assert next(stream).choices[0].delta.content == "half"
    with pytest.raises(openai.APIError, match="stopped in the middle"):
        next(stream)


@pytest.mark.parametrize(
    "written",
    [
        b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"half": ',
        b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"hal\r\n',
        b'HTTP/1.1 200 OK\r\n\r\n{"choices": []}',  # looks complete, but has no announced end
        b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"hal\r\nnonsense',
    ],
)
def test_a_truncated_answer_that_is_not_streamed_is_a_502(world, written):
    world.model("m", world.pod(world.does.write(written, gap_s=0.05, then="die")))
    answer = world.start().post()
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")


def test_killed_in_mid_stream_that_client_gets_an_error_and_the_queued_are_served(world):
    pod = world.pod(world.does.talk(words=1000, gap_s=0.02))
    world.model("m", pod, targetConcurrency=1)
    first = world.start().chat(stream=True)
    assert next(first).choices[0].delta.content == "w0 "
    queued = [world.background(world.chat) for _ in range(3)]
    world.until(lambda: world.state()["waiting"] == 3)
    world.do(pod.kill())
    with pytest.raises(openai.APIError, match="stopped in the middle"):
        list(first)
    pod.handler = world.does.talk()
    world.do(pod.start())
    assert [waiting.result(60).choices[0].message.content for waiting in queued] == ["complete"] * 3


def test_a_pod_that_sends_nothing_for_too_long_is_given_up(world):
    world.model("m", world.pod(world.does.write()), coldStart={"maxWaitSeconds": 0.5})
    answer = world.start(idle_timeout_s=1).post()
    assert answer.status_code == 502


def test_an_answer_too_large_to_keep_is_a_502(world):
    world.model("m", world.pod(world.does.refuse(200, b"x" * 3000)))
    answer = world.start(max_answer_bytes=2000).post()
    assert "over 2000 bytes" in answer.json()["error"]["message"]


def test_a_pod_that_does_not_speak_http_harms_only_its_own_request(world):
    world.model("odd", world.pod(world.does.write(b"SSH-2.0-OpenSSH\r\n")))
    world.model("m", world.pod())
    world.start()
    assert httpx.post(f"{world.url}/default/odd/v1/completions", json={}, timeout=60).status_code == 502
    assert world.post().status_code == 200


@pytest.mark.parametrize(
    ("heartbeat_s", "requests", "interval_s"),
    [(10, 128, 10), (0.3, 1, 0.3), (0.001, 1, 0.01), (0.001, 2000, 20)],
)
def test_heartbeats_of_one_model_leave_time_for_others(heartbeat_s, requests, interval_s):
    """Two thousand held streams with a heartbeat of a millisecond would be all that a gateway does."""
    assert beat_interval_s(heartbeat_s, requests) == interval_s


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_request_under_which_an_engine_died_is_sent_again_and_never_to_a_third(world, is_stream):
    """The pod still answers, 500 in OpenAI's shape; a client without a gateway needs that."""
    died = world.answer(500, b'{"error": {"code": "engine_failed"}}', "x-wisp-died: engine")
    first, *dying = [world.pod(world.does.write(died)) for _ in range(4)]
    world.model("m", first, world.pod(), routing="LeastLoad")
    world.start()
    ask = {**CHAT, "stream": is_stream}
    assert [world.post(json=ask).status_code for _ in range(4)] == [200] * 4
    world.model("m", *dying)
    answer = world.post(json=ask)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (502, "false")
    assert sum(len(pod.seen) for pod in dying) == 2


def test_what_a_pod_says_to_the_gateway_alone_does_not_reach_the_client(world):
    world.model("m", world.pod(world.does.write(world.answer(200, b"{}", "x-wisp-anything: 1"))))
    assert "x-wisp-anything" not in world.start().post().headers


OVERLOADED = b'{"error": {"message": "full", "code": "engine_overloaded"}}'


def test_a_429_of_a_pod_is_tried_elsewhere_and_held_and_at_last_passed_on(world, monkeypatch):
    monkeypatch.setattr(proxy, "OVERLOAD_PAUSE_S", 0.05)
    full = world.pod(world.does.refuse(429, OVERLOADED))
    world.model("m", full, world.pod(), routing="LeastLoad")
    world.start()
    assert [world.post().status_code for _ in range(6)] == [200] * 6
    world.model("m", full)
    waiting = world.background(world.post)
    seen = len(full.seen)
    world.until(lambda: len(full.seen) > seen + 2)  # more often than a refusal is tried
    full.handler = world.does.talk()
    assert waiting.result(60).status_code == 200
    full.handler = world.does.refuse(429, OVERLOADED)
    waiting = world.background(world.post)
    world.until(lambda: world.state()["waiting"])
    for is_ready in (False, True):  # the cluster's word, which outdates what the gateway has seen
        world.model("m", full, ready=is_ready)
    full.handler = world.does.talk()
    assert waiting.result(5).status_code == 200
    full.handler = world.does.refuse(429, OVERLOADED)
    assert world.post().json()["error"]["code"] == "engine_overloaded"


def test_a_request_for_too_many_answers_keeps_no_other_from_its_pod(world, monkeypatch):
    monkeypatch.setattr(proxy, "OVERLOAD_PAUSE_S", 20.0)
    refuse, talk = world.does.refuse(429, OVERLOADED), world.does.talk()

    async def handle(pod, seen, writer):
        await (refuse if seen.json.get("n") else talk)(pod, seen, writer)

    pod = world.pod(handle)
    world.model("m", pod)
    world.start()
    too_many = world.background(lambda: world.post(json={**CHAT, "n": 8}))
    world.until(lambda: pod.seen)
    assert world.background(world.post).result(10).status_code == 200
    monkeypatch.setattr(proxy, "OVERLOAD_PAUSE_S", 0.01)
    assert world.post(json={**CHAT, "n": 8}).json()["error"]["code"] == "engine_overloaded"
    assert not too_many.done()


def test_a_model_whose_only_pod_is_full_does_not_wake(world, monkeypatch):
    """Its requests wait for a place, also where a model at zero refuses them."""
    monkeypatch.setattr(proxy, "OVERLOAD_PAUSE_S", 3.0)
    full = world.pod(world.does.refuse(429, OVERLOADED))
    world.model("m", full, coldStart={"mode": "Reject"})
    world.start()
    first = world.background(world.post)
    world.until(lambda: world.state()["waiting"])
    second = world.background(world.post)
    world.until(lambda: second.done() or world.state()["waiting"] == 2)
    full.handler = world.does.talk()
    assert [answer.result(60).status_code for answer in (first, second)] == [200, 200]
    assert world.state()["lastColdStartSeconds"] is None
