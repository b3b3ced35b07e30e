"""Requests in Anthropic's dialect: key, errors, heartbeats, events."""

from __future__ import annotations

import json
import socket

import anthropic
import httpx
import pytest

MESSAGES = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**MESSAGES, "stream": True}


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "kind"),
    [
        ("/v1/messages", {**MESSAGES, "model": "other"}, {}, 401, "authentication_error"),
        ("/v1/messages", {**MESSAGES, "model": "other"}, {"x-api-key": "sk"}, 404, "not_found_error"),
        ("/v1/messages", {}, {"x-api-key": "sk"}, 400, "invalid_request_error"),
        ("/v1/messages/count_tokens", {"model": 5}, {"x-api-key": "sk"}, 400, "invalid_request_error"),
        ("/v1/messages/batches", {}, {"x-api-key": "sk"}, 404, "not_found_error"),
        ("/v1/messages", {"x": "y" * 3000}, {"x-api-key": "sk"}, 413, "request_too_large"),
    ],
)
def test_every_error_has_anthropics_shape(world, tmp_path, path, body, headers, status, kind):
    (tmp_path / "keys").write_text("sk")
    world.model("m", world.pod())
    world.start(api_keys=tmp_path / "keys", max_body_bytes=2000)
    answer = httpx.post(world.url + path, json=body, headers={**headers, "x-request-id": "r-1"})
    assert answer.status_code == status
    error = answer.json()
    assert error.keys() == {"type", "error", "request_id"}
    assert (error["type"], error["error"]["type"], error["request_id"]) == ("error", kind, "r-1")
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == "r-1"


def test_its_client_lists_and_retrieves_models(world):
    world.model("m", world.pod(), created=1_700_000_000)
    world.model("asleep", state="Asleep")
    world.start()
    client = anthropic.Anthropic(
        api_key="sk", base_url=world.url, max_retries=0, _strict_response_validation=True
    )
    assert [model.id for model in client.models.list()] == ["m", "asleep"]
    model = client.models.retrieve("default/m")
    assert (model.id, model.type, model.created_at.isoformat()) == ("m", "model", "2023-11-14T22:13:20+00:00")
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.models.retrieve("other")
    assert refused.value.body["error"]["type"] == "not_found_error"
    assert refused.value.request_id == refused.value.response.headers["x-request-id"]


def test_no_model_is_an_empty_page(world):
    world.start()
    answer = httpx.get(f"{world.url}/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert answer == {"data": [], "has_more": False, "first_id": None, "last_id": None}


def test_a_body_that_never_comes_is_refused_in_the_dialect_of_its_path(world):
    world.start(body_timeout_s=0.2)
    host, port = world.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 408 ")
    assert json.loads(received.rpartition(b"\r\n\r\n")[2])["error"]["type"] == "timeout_error"


def test_key_and_beta_query_reach_no_pod_and_the_versions_header_does(world, tmp_path):
    (tmp_path / "keys").write_text("sk")
    pod = world.pod()
    world.model("m", pod)
    world.start(api_keys=tmp_path / "keys")
    headers = {"x-api-key": "sk", "anthropic-version": "2023-06-01", "anthropic-beta": "b"}
    assert world.post("/v1/messages?beta=true", json=MESSAGES, headers=headers).status_code == 200
    [seen] = pod.seen
    assert seen.path == "/v1/messages"
    assert seen.headers["anthropic-version"] == "2023-06-01"
    assert not {"x-api-key", "authorization"} & seen.headers.keys()


def test_a_waiting_stream_has_heartbeats_and_its_error_is_an_event(world):
    world.model("m", state="Waking", coldStart={"maxWaitSeconds": 0.5, "heartbeatSeconds": 0.1})
    world.start()
    answer = world.post("/v1/messages", json=STREAM)
    assert answer.status_code == 200
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    blocks = [block for block in answer.text.split("\n\n") if block]
    assert all(block.startswith(": ") for block in blocks[:-1])
    assert len(blocks) > 2
    name, data = blocks[-1].split("\n")
    assert name == "event: error"
    assert '"type": "overloaded_error"' in data


def test_a_stream_whose_pod_dies_ends_in_an_error_event(world):
    started = world.framed(b'event: message_start\ndata: {"type": "message_start"}\n\n')
    world.model("m", world.pod(world.does.write(world.STREAM_HEAD, started, then="die")))
    world.start()
    text = world.post("/v1/messages", json=STREAM).text
    assert text.startswith("event: message_start\n")
    assert text.count("event: error\n") == 1
    assert text.rstrip().rpartition("data: ")[2].startswith('{"type": "error", "error": {"type": "api_error"')
