"""Refusals: keys, limits, bad requests, the shape of every error."""

from __future__ import annotations

import gzip
import json
import socket

import httpx
import pytest


def raw(world, data, timeout_s=60.0):
    """Send bytes, return everything until the gateway closes."""
    host, port = world.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(data)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


JSON = {"content-type": "application/json"}
GZIP = {**JSON, "content-encoding": "gzip"}


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status", "code"),
    [
        ("GET", "/nowhere", b"", {}, 404, "unknown_path"),
        ("POST", "/v1/images/generations", b"{}", JSON, 404, "unknown_path"),
        ("GET", "/v1/chat/completions", b"", {}, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", b"", {}, 405, "method_not_allowed"),
        ("GET", "/v1/models/unknown", b"", {}, 404, "model_not_found"),
        ("POST", "/a/unknown/v1/completions", b"{}", JSON, 404, "model_not_found"),
        ("POST", "/default/m/v1/completions", b'{"model": "other"}', JSON, 404, "model_not_found"),
        ("POST", "/v1/completions", b"x" * 2001, JSON, 413, "request_too_large"),
        ("POST", "/v1/completions", b"{}", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        ("POST", "/v1/completions", gzip.compress(b"{}", mtime=0), GZIP, 415, "unsupported_content_encoding"),
        ("POST", "/v1/completions", b"{", JSON, 400, "invalid_json"),
        ("POST", "/v1/completions", b"", JSON, 400, "invalid_json"),
        ("POST", "/v1/completions", b"\xff\xfe{", JSON, 400, "invalid_json"),
        ("POST", "/v1/completions", b"[" * 1900, JSON, 400, "invalid_json"),
        ("POST", "/v1/completions", b"[]", JSON, 400, "invalid_request"),
        ("POST", "/v1/completions", b"{}", JSON, 400, "invalid_request"),
        ("POST", "/v1/completions", b'{"model": 5}', JSON, 400, "invalid_request"),
        ("POST", "/v1/completions", b'{"model": "default/m", "n": NaN}', JSON, 400, "invalid_json"),
        ("GET", "/v1/models", b"", {"x-large": "y" * 1500}, 431, "headers_too_large"),
    ],
)
def test_every_error_has_openais_shape(world, method, path, content, headers, status, code):
    world.model("m", world.pod(), servedName="other-name")
    world.start(max_body_bytes=2000, max_header_bytes=1200)
    answer = httpx.request(method, world.url + path, content=content, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert len(error["message"]) > 15


def test_a_405_names_the_allowed_method(world):
    assert httpx.get(f"{world.start().url}/v1/completions").headers["allow"] == "POST"


def test_malformed_http_gets_the_shape_too(world):
    answer = raw(world.start(), b"EHLO gateway\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


def test_a_head_that_does_not_end_is_given_up(world):
    answer = raw(world.start(header_timeout_s=0.3), b"GET /livez HTTP/1.1\r\nx: y")
    assert b"No complete request head" in answer


def test_a_chunked_body_over_the_limit_is_refused_too(world):
    world.model("m", world.pod())
    world.start(max_body_bytes=1000)
    answer = httpx.post(f"{world.url}/v1/completions", content=iter([b"x" * 600] * 3), headers=JSON)
    assert answer.status_code == 413


def test_the_request_id_is_kept_or_made_and_goes_to_the_pod(world):
    pod = world.pod()
    world.model("m", pod)
    world.start()
    kept = world.post(headers={"x-request-id": "trace-1"})
    made = world.post(headers={"x-request-id": "no good\tid"})
    assert kept.headers["x-request-id"] == "trace-1"
    assert made.headers["x-request-id"].startswith("req-")
    assert [seen.headers["x-request-id"] for seen in pod.seen] == ["trace-1", made.headers["x-request-id"]]
    assert httpx.get(f"{world.url}/nowhere").headers["x-request-id"].startswith("req-")


def test_the_body_is_forwarded_unchanged_when_the_pod_serves_the_model_under_that_name(world):
    pod = world.pod()
    world.model("m", pod)
    content = b'{"model" : "m",  "seed": 1.50, "prompt":"\\u00e4"}'
    world.start().post("/v1/completions", content=content, headers=JSON)
    assert pod.seen[0].body == content


@pytest.fixture
def guarded(world):
    """One model behind the gateway's keys; one with a key file of its own besides."""
    (world.tmp_path / "keys").write_text("alice:sk-alice\nsk-bare\n")
    (world.tmp_path / "team").write_text("sk-team\n")
    world.model("m", world.pod())
    world.model("team", world.pod(), apiKeysFile=str(world.tmp_path / "team"))
    return world.start(api_keys=world.tmp_path / "keys")


@pytest.mark.parametrize(
    ("model", "key", "status"),
    [
        ("m", None, 401),
        ("m", "wrong", 401),
        ("m", "alice", 401),  # the name is not the key
        ("m", "sk-alice", 200),
        ("m", "sk-bare", 200),
        ("m", "sk-team", 404),
        ("team", "sk-team", 200),
        ("team", "sk-alice", 200),
        ("team", "sk-ALICE", 401),
    ],
)
def test_keys_open_models(guarded, model, key, status):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = guarded.post("/v1/completions", json={"model": model, "prompt": "x"}, headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
    if status == 404:
        assert answer.json()["error"]["code"] == "model_not_found"
    assert all("authorization" not in seen.headers for pod in guarded.pods for seen in pod.seen)


@pytest.mark.parametrize(
    ("key", "listed"), [("sk-alice", ["m", "team"]), ("sk-team", ["team"]), ("no", None)]
)
def test_a_key_lists_the_models_it_opens(guarded, key, listed):
    answer = httpx.get(f"{guarded.url}/v1/models", headers={"authorization": f"Bearer {key}"})
    assert (
        (answer.status_code == 401)
        if listed is None
        else ([m["id"] for m in answer.json()["data"]] == listed)
    )


def test_a_changed_key_file_counts_at_once_and_a_missing_one_keeps_the_last(guarded):
    file = guarded.tmp_path / "keys"
    file.write_text("sk-new-and-longer\n")
    old, new = ({"authorization": f"Bearer {key}"} for key in ("sk-alice", "sk-new-and-longer"))
    assert [guarded.post(headers=headers).status_code for headers in (old, new)] == [401, 200]
    file.unlink()
    assert [guarded.post(headers=headers).status_code for headers in (old, new)] == [401, 200]


def test_a_models_key_file_that_cannot_be_read_closes_the_model(world):
    world.model("m", world.pod(), apiKeysFile="/nonexistent/keys")
    world.start()
    assert world.post().status_code == 401
    assert world.post(headers={"authorization": "Bearer anything"}).status_code == 401


def test_without_a_key_nothing_is_read(guarded):
    answer = guarded.post(content=b"{", headers={**JSON, "authorization": "Bearer wrong"})
    assert answer.status_code == 401


def test_probes_need_no_key(guarded):
    for path in ("/livez", "/readyz"):
        assert httpx.get(guarded.url + path).status_code == 200


def test_metrics_are_split_by_model_and_never_by_a_clients_text(world):
    world.model("m", world.pod())
    world.start()
    world.post()
    world.post(json={"model": 'evil"} 1\n', "prompt": "x"})
    world.until(lambda: world.metric('wisp_gateway_requests_total{model="default/m",code="200"}') == 1)
    world.until(lambda: world.metric('wisp_gateway_requests_total{model="",code="404"}') == 1)
    assert world.metric('wisp_gateway_hold_seconds_count{model="default/m"}') == 1
    assert world.metric('wisp_gateway_time_to_first_byte_seconds_count{model="default/m"}') == 1
    assert world.metric('wisp_gateway_tokens_total{model="default/m"}') == 7  # the answer's usage
    assert world.metric('wisp_gateway_sent_bytes_total{model="default/m"}') > 100
    assert "evil" not in httpx.get(f"{world.url}/metrics").text
