"""Stored responses: requests that name one reach the pod that has it, and nobody else's key does."""

from __future__ import annotations

import json

import pytest

from wisp_gateway.routing.response_ids import pod_tag, tag_of

KEY = "k" * 32


def storing(world):
    """Handler of a pod that stores what it was asked and finds it by id, for the same account alone."""
    stored = {}

    async def handle(pod, seen, writer):
        account = seen.headers.get("x-wisp-account", "")
        parts = seen.path.partition("?")[0].split("/")[3:]
        if not parts:
            previous = seen.json.get("previous_response_id")
            if previous and stored.get(previous) != account:
                writer.write(world.answer(400, b'{"error": {"code": "previous_response_not_found"}}'))
                return
            given = f"resp_{seen.headers['x-wisp-pod-tag']}{len(stored):032x}"
            stored[given] = account
            writer.write(world.answer(200, json.dumps({"id": given}).encode()))
            return
        is_there = stored.get(parts[0]) == account
        if seen.method == "DELETE" and is_there:
            del stored[parts[0]]
        body = {"id": parts[0], "port": pod.port} if is_there else {"error": {"code": "unknown"}}
        writer.write(world.answer(200 if is_there else 404, json.dumps(body).encode()))

    return handle


@pytest.fixture
def pods(world):
    pods = [world.pod(storing(world)) for _ in range(3)]
    world.model("m", *pods, routing="LeastLoad")
    return pods


def create(world, **more):
    answer = world.post("/v1/responses", json={"model": "m", "input": "hello", **more})
    return answer.json()["id"] if answer.status_code == 200 else answer


def test_get_cancel_and_delete_reach_the_pod_of_the_response_with_their_query(world, pods):
    world.start()
    ids = [create(world) for _ in range(6)]
    assert len({tag_of(given) for given in ids}) == 3  # spread over the pods
    for given in ids:
        path = f"{world.url}/v1/responses/{given}"
        holder = next(pod for pod in pods if pod_tag("default/m", f"m-{pod.port}") == tag_of(given))
        assert world.http.get(path, params={"include[]": "x"}).json() == {"id": given, "port": holder.port}
        assert holder.seen[-1].path == f"/v1/responses/{given}?include%5B%5D=x"
        assert world.http.post(f"{path}/cancel").json()["port"] == holder.port
        assert world.http.delete(path).status_code == 200
        assert world.http.get(path).json() == {"error": {"code": "unknown"}}  # the pod's own 404


def test_a_request_that_continues_a_response_goes_to_its_pod_however_busy_others_are(world, pods):
    world.start()
    for _ in range(4):
        first = create(world)
        for _ in range(4):
            assert tag_of(create(world, previous_response_id=first)) == tag_of(first)


def test_a_response_whose_pod_is_gone_is_not_found_and_continuing_it_is_the_pods_400(world, pods):
    world.start()
    first = create(world)
    kept = [pod for pod in pods if pod_tag("default/m", f"m-{pod.port}") != tag_of(first)]
    world.model("m", *kept, routing="LeastLoad")
    answer = world.http.get(f"{world.url}/v1/responses/{first}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")
    assert create(world, previous_response_id=first).status_code == 400


def test_a_pod_that_does_not_answer_is_a_503_to_be_tried_again(world, pods):
    world.start()
    first = create(world)
    for pod in pods:
        world.do(pod.kill())
    answer = world.http.get(f"{world.url}/v1/responses/{first}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "pod_unreachable")
    assert answer.headers["retry-after"] == "1"


def test_a_response_is_found_by_the_key_that_made_it_alone(world, pods, tmp_path):
    (tmp_path / "keys").write_text("alice:sk-a\nbob:sk-b\n")
    (tmp_path / "tokens").write_text(KEY)
    world.start(api_keys=tmp_path / "keys", pod_token_keys=tmp_path / "tokens")
    alice, bob = {"x-api-key": "sk-a"}, {"authorization": "Bearer sk-b", "x-wisp-account": "forged"}
    made = world.post("/v1/responses", json={"model": "m", "input": "x"}, headers=alice).json()["id"]
    path = f"{world.url}/v1/responses/{made}"
    assert [world.http.get(path, headers=key).status_code for key in (alice, bob, {})] == [200, 404, 401]
    for pod in pods:
        assert all("sk-" not in json.dumps(seen.headers) for seen in pod.seen)


def test_a_key_that_does_not_open_the_model_learns_nothing_of_its_responses(world, tmp_path):
    for name in ("alice", "bob"):
        (tmp_path / name).write_text(f"sk-{name}")
        world.model(name, world.pod(storing(world)), apiKeysFile=str(tmp_path / name))
    world.start()
    alice, bob = ({"authorization": f"Bearer sk-{name}"} for name in ("alice", "bob"))
    made = world.post("/v1/responses", json={"model": "alice", "input": "x"}, headers=alice).json()["id"]
    get = world.http.get
    theirs = get(f"{world.url}/v1/responses/{made}", headers=bob)
    unknown = get(f"{world.url}/v1/responses/{'resp_' + '0' * 44}", headers=bob)
    assert theirs.status_code == unknown.status_code == 404
    assert theirs.json()["error"]["message"].replace(made, "") == unknown.json()["error"]["message"].replace(
        "resp_" + "0" * 44, ""
    )
    assert get(f"{world.url}/default/bob/v1/responses/{made}", headers=alice).status_code == 404
    assert get(f"{world.url}/default/alice/v1/responses/{made}", headers=alice).status_code == 200
