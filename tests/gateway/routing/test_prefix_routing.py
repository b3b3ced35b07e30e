"""Routing by prompts through the gateway: histories stay at their pod, and what a pod lost is forgotten."""

from __future__ import annotations

import json
import threading

import pytest

LEDGER = {"ledger": {"kvCacheBytes": 46_080 * 1000, "kvBytesPerToken": 46_080}}


@pytest.fixture
def pods(world):
    pods = [world.pod() for _ in range(4)]
    world.model("m", *pods)
    world.start()
    return pods


def agent(name, turns):
    """Bodies of a conversation that grows, behind a system prompt that all share."""
    messages = [{"role": "system", "content": "You are an agent. " * 200}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{name} {turn} " * 200})
        yield {"model": "m", "messages": list(messages)}
        messages.append({"role": "assistant", "content": "complete"})


def seen_by(pods, text):
    return [sum(text in seen.body.decode() for seen in pod.seen) for pod in pods]


def routed(world, by):
    return world.metric(f'wisp_gateway_routed_total{{model="default/m",by="{by}"}}')


def test_each_history_stays_at_one_pod_and_many_use_all(world, pods):
    turns = {name: list(agent(name, 4)) for name in ("anna", "bert", "carl", "dora")}
    may_answer = threading.Event()
    for pod in pods:
        pod.handler = world.does.talk_once(may_answer)  # no answer before the last of four asks
    asked = [world.background(lambda body=bodies[0]: world.post(json=body)) for bodies in turns.values()]
    world.until(lambda: sum(len(pod.seen) for pod in pods) == 4)
    may_answer.set()
    assert {answer.result(60).status_code for answer in asked} == {200}
    for pod in pods:
        pod.handler = world.does.talk()
    for number in range(1, 4):
        for bodies in turns.values():
            world.post(json=bodies[number]).raise_for_status()
    assert all(sorted(seen_by(pods, name)) == [0, 0, 0, 4] for name in turns)
    assert all(pod.seen for pod in pods)
    assert routed(world, "prefix") >= 12  # all but the first of each
    assert world.metric('wisp_gateway_prompt_matched_bytes_total{model="default/m"}') > 60_000
    assert world.metric('wisp_gateway_prompt_bytes_total{model="default/m"}') > 90_000


def test_a_session_stays_at_one_pod_whatever_it_asks(world, pods):
    for number in range(8):
        world.post(
            json={"model": "m", "prompt": f"{number}"}, headers={"x-session-id": "one"}
        ).raise_for_status()
        world.post(json={"model": "m", "prompt": f"{number}", "prompt_cache_key": "two"}).raise_for_status()
    assert routed(world, "session") == 14
    assert sum(bool(pod.seen) for pod in pods) <= 2


def test_sessions_of_two_keys_with_one_name_are_two(world, tmp_path):
    (tmp_path / "keys").write_text("sk-a\nsk-b\n")
    world.model("m", *[world.pod() for _ in range(4)])
    world.start(api_keys=tmp_path / "keys")
    for key in ("sk-a", "sk-b"):
        headers = {"authorization": f"Bearer {key}", "x-session-id": "one"}
        world.post(headers=headers).raise_for_status()
    assert routed(world, "session") == 0


def test_prompts_of_two_salts_share_nothing(world, pods):
    [body] = agent("anna", 1)
    for salt in ("a", "b"):
        world.post(json={**body, "cache_salt": salt}).raise_for_status()
    assert routed(world, "prefix") == 0
    world.post(json={**body, "cache_salt": "b"}).raise_for_status()
    assert routed(world, "prefix") == 1


def test_what_a_pod_had_is_forgotten_when_it_ends(world, pods):
    first, second = agent("anna", 2)
    world.post(json=first).raise_for_status()
    holder = next(pod for pod in pods if pod.seen)
    world.do(holder.kill())
    world.post(json=second).raise_for_status()
    assert routed(world, "prefix") == 1  # sent to it, refused, and elsewhere without a prefix
    assert seen_by([pod for pod in pods if pod is not holder], "anna 1") != [0, 0, 0]
    world.do(holder.start())
    world.until(lambda: all(pod["ready"] for pod in world.state()["endpoints"]))
    assert not len(record_of(world, holder))


def record_of(world, pod):
    return world.gateway.registry.find("m").pods[f"m-{pod.port}"].record


def test_the_record_is_as_large_as_the_pods_cache(world, pods):
    for pod in pods:
        pod.state = LEDGER
    [body] = agent("anna", 1)
    world.post(json=body).raise_for_status()
    holder = next(pod for pod in pods if pod.seen)
    world.until(lambda: record_of(world, holder).is_capacity_known)
    assert record_of(world, holder).capacity_bytes == 4000
    assert record_of(world, holder).held_bytes <= 4000
    assert [pod.states_read for pod in pods] == [int(pod is holder) for pod in pods]


@pytest.mark.parametrize(("routing", "count"), [("LeastLoad", 4), ("PrefixAware", 1)])
def test_without_a_choice_or_by_load_alone_no_prompt_is_recorded(world, routing, count):
    pods = [world.pod() for _ in range(count)]
    world.model("m", *pods, routing=routing)
    world.start()
    for body in agent("anna", 3):
        world.post(json=body).raise_for_status()
    assert not any(len(record_of(world, pod)) for pod in pods)
    if routing == "LeastLoad":
        assert seen_by(pods, "anna") == [1, 1, 1, 0]


def test_anthropics_and_responses_histories_stay_at_their_pod_too(world, pods):
    for path, field in (("/v1/messages", "messages"), ("/v1/responses", "input")):
        for body in agent(field, 3):
            system, *messages = body["messages"]
            named = {"system": system["content"], "instructions": system["content"], field: messages}
            world.post(path, content=json.dumps({"model": "m", **named})).raise_for_status()
        assert sorted(seen_by(pods, f"{field} 0"))[:3] == [0, 0, 0]


def test_what_leaves_nothing_in_a_cache_is_not_recorded(world, pods):
    text = "text " * 1000
    for path in ("/v1/embeddings", "/tokenize", "/v1/messages/count_tokens"):
        world.post(path, json={"model": "m", "input": text, "prompt": text}).raise_for_status()
    assert not any(len(record_of(world, pod)) for pod in pods)
