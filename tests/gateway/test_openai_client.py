"""The official, unmodified ``openai`` client against the gateway."""

from __future__ import annotations

import time

import httpx
import openai
import pytest


def test_models_at_zero_are_listed_beside_ready_ones(world):
    world.model("m", world.pod())
    world.model("asleep", state="Asleep")
    client = world.start().openai()
    assert [model.id for model in client.models.list()] == ["m", "asleep"]
    assert client.models.retrieve("asleep").owned_by == "default"
    assert client.models.retrieve("default/asleep").id == "asleep"


def test_chat_complete_and_streamed(world):
    pod = world.pod()
    world.model("m", pod)
    client = world.start().openai()
    assert world.chat(client=client).choices[0].message.content == "complete"
    assert world.text_of(world.chat(client=client, stream=True)) == "w0 w1 w2 w3 w4 "
    assert [seen.path for seen in pod.seen] == ["/v1/chat/completions"] * 2
    assert pod.connections == 1  # kept alive between the two


def test_completions_take_the_same_way(world):
    pod = world.pod()
    world.model("m", pod)
    world.start().openai().completions.create(model="m", prompt="hello")
    assert pod.seen[0].path == "/v1/completions"


def test_embeddings_pass_as_the_chunks_that_a_pod_sends(world):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    entry = b'{"object":"embedding","index":%d,"embedding":"AACAPwAAAEA="}'  # 1 and 2
    parts = (b'{"object":"list","data":[' + entry % 0, b"," + entry % 1, b'],"model":"m","usage":{}}')
    pod = world.pod(world.does.write(head, *map(world.framed, parts), b"0\r\n\r\n", gap_s=0.01))
    world.model("m", pod)
    answer = world.start().openai().embeddings.create(model="m", input=["a", "b"])
    assert [entry.embedding for entry in answer.data] == [[1.0, 2.0]] * 2
    assert pod.seen[0].path == "/v1/embeddings"


def test_paths_as_other_servers_have_them_lead_to_the_model_of_the_body(world):
    pod = world.pod()
    world.model("m", pod)
    world.start()
    for path in ("/rerank", "/v2/rerank", "/score", "/tokenize", "/detokenize"):
        assert httpx.post(world.url + path, json={"model": "default/m"}).status_code == 200
        assert httpx.post(world.url + path, json={}).json()["error"]["param"] == "model"
    expect = ["/v1/rerank", "/v2/rerank", "/v1/score", "/v1/tokenize", "/v1/detokenize"]
    assert [seen.path for seen in pod.seen] == expect
    assert {seen.json["model"] for seen in pod.seen} == {"m"}


def test_the_alias_and_the_models_own_url(world):
    pod = world.pod()
    world.model("m", pod, servedName="Org/served")
    world.start()
    for base in ("/openai/v1", "/default/m/v1"):
        assert (
            world.chat(client=world.openai(base_url=world.url + base)).choices[0].message.content
            == "complete"
        )
    assert [seen.json["model"] for seen in pod.seen] == ["m"] * 2  # by metadata.name, which never changes
    assert [model.id for model in world.openai(base_url=f"{world.url}/default/m/v1").models.list()] == [
        "Org/served"
    ]


@pytest.mark.parametrize(
    ("model", "raised", "code"),
    [
        ("unknown", openai.NotFoundError, "model_not_found"),
        ("prod/deleted", openai.NotFoundError, "model_not_found"),
        ("", openai.BadRequestError, "invalid_request"),
        ("off", openai.InternalServerError, "model_suspended"),
        ("broken", openai.InternalServerError, "model_failed"),
        ("lazy", openai.InternalServerError, "model_asleep"),
        ("full", openai.RateLimitError, "queue_full"),
    ],
)
def test_errors_are_raised_as_the_right_class(world, model, raised, code):
    world.model("thief", namespace="b", state="Asleep", servedName="prod/deleted")
    world.model("off", state="Suspended")
    world.model("broken", state="Failed", reason="DoesNotFit", message="needs 17 GiB, has 14")
    world.model("lazy", state="Asleep", coldStart={"mode": "Reject"})
    world.model("full", state="Asleep", coldStart={"queueLimit": 0})
    client = world.start().openai()
    with pytest.raises(raised) as caught:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == code


def test_the_oldest_model_keeps_a_bare_name_and_the_newer_is_reached_by_its_qualified_one(world):
    old, new = world.pod(), world.pod()
    world.model("shared", old, namespace="b", created=1, servedName="one")
    world.model("shared", new, namespace="a", created=2, servedName="one")
    client = world.start().openai()
    for name in ("one", "shared", "b/shared", "a/shared"):
        client.chat.completions.create(model=name, messages=[])
    assert (len(old.seen), len(new.seen)) == (3, 1)
    assert [model.id for model in client.models.list()] == ["one", "a/shared"]


def test_requests_for_a_deleted_model_do_not_reach_a_strangers_pods(world):
    mine, strangers = world.pod(), world.pod()
    world.model("llama", mine, namespace="prod", created=1)
    world.model("x", strangers, namespace="tenant-b", created=2, servedName="llama")
    client = world.start().openai()
    world.remove("prod/llama")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="llama", messages=[])
    world.model("llama", mine, namespace="prod", created=3)
    client.chat.completions.create(model="llama", messages=[])
    assert (len(mine.seen), len(strangers.seen)) == (1, 0)


def test_a_granted_name_outranks_age(world):
    """An old model that renames itself to a name in use; this gateway has seen neither before."""
    holder, renamed = world.pod(), world.pod()
    world.model("llama", holder, namespace="prod", created=2, names=["llama"])
    world.model("x", renamed, namespace="tenant-b", created=1, servedName="llama")
    world.start().openai().chat.completions.create(model="llama", messages=[])
    assert (len(holder.seen), len(renamed.seen)) == (1, 0)


def test_the_client_comes_back_after_retry_after_and_is_served(world):
    """Reject: the first attempt gets 503 with Retry-After and wakes; the SDK's retry finds the pod ready."""
    pod = world.pod()
    world.model("m", state="Asleep", coldStart={"mode": "Reject"})
    world.start()
    world.gateway.registry.find("m").last_cold_start_s = 0.5

    def make_ready():
        world.until(lambda: world.state()["arrivals"] == 1)
        world.model("m", pod)

    made = world.background(make_ready)
    began = time.monotonic()
    assert world.chat(client=world.openai(max_retries=1)).choices[0].message.content == "complete"
    assert time.monotonic() - began >= 1.0  # Retry-After: 1
    made.result(60)
    assert world.state()["arrivals"] == 2


def test_a_heartbeat_is_no_event_and_a_late_answer_follows_it(world):
    pod = world.pod()
    pod.is_ready = False
    world.model("m", pod, state="Waking", ready=False, coldStart={"heartbeatSeconds": 0.1})
    client = world.start().openai()
    stream = world.chat(
        client=client, stream=True
    )  # returns with the heartbeat's 200, before any pod is ready
    assert pod.seen == []
    pod.is_ready = True
    assert world.text_of(stream) == "w0 w1 w2 w3 w4 "


def test_a_failure_after_the_heartbeat_is_raised_from_the_stream(world):
    world.model("m", state="Asleep", coldStart={"heartbeatSeconds": 0.05, "maxWaitSeconds": 2})
    stream = world.start().chat(stream=True)
    with pytest.raises(openai.APIError, match=r"had no free pod for 2"):
        next(stream)


def test_a_failure_before_the_heartbeat_is_a_status(world):
    world.model("m", state="Asleep", coldStart={"heartbeatSeconds": 5, "maxWaitSeconds": 0.2})
    with pytest.raises(openai.InternalServerError) as caught:
        world.start().chat(stream=True)
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1


BAD = b'{"error": {"message": "temperature must be >= 0", "type": "invalid_request_error", "code": "bad"}}'


def test_a_pods_own_refusal_passes_through_as_it_is(world):
    world.model("m", world.pod(world.does.refuse(400, BAD)))
    with pytest.raises(openai.BadRequestError, match="temperature must be >= 0"):
        world.start().chat(temperature=-1)


def test_a_pods_own_refusal_after_the_heartbeat_is_raised_from_the_stream(world):
    pod = world.pod(world.does.refuse(400, BAD))
    pod.is_ready = False
    world.model("m", pod, state="Waking", ready=False, coldStart={"heartbeatSeconds": 0.05})
    stream = world.start().chat(stream=True)
    pod.is_ready = True
    with pytest.raises(openai.APIError, match="temperature must be >= 0"):
        next(stream)
