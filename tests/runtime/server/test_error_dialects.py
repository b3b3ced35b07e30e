"""Errors of Anthropic's paths have its format, whichever part of the server raises them."""

import hashlib
import re

import httpx
import pytest
from fake_engine import live_server

MESSAGES = "/v1/messages"
NEW_ID = re.compile("req-[0-9a-f]{32}")


def error_of(answer):
    body = answer.json()
    assert (set(body), body["type"]) == ({"type", "error", "request_id"}, "error"), body
    assert set(body["error"]) == {"type", "message", "details"}
    assert set(body["error"]["details"]) == {"error_code"}
    assert body["request_id"] == answer.headers["request-id"]
    return body["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", f"{MESSAGES}/unknown", 404, "not_found_error"),
        ("GET", f"{MESSAGES}/unknown", 404, "not_found_error"),
    ],
)
def test_a_wrong_path_or_method_is_refused_in_the_format_of_its_api(api, method, path, status, kind):
    answer = api.request(method, path)
    assert (answer.status_code, error_of(answer)["type"]) == (status, kind)
    assert path in error_of(answer)["message"]
    assert NEW_ID.fullmatch(answer.headers["request-id"])
    assert answer.headers["x-request-id"] == answer.headers["request-id"]


@pytest.mark.parametrize("path", [f"/v1{MESSAGES}", "/messages", f"/v1/chat/completions{MESSAGES}"])
def test_a_wrong_base_url_is_named_as_the_sdk_reads_it(api, path):
    answer = api.post(path, json={})
    assert answer.status_code == 404
    assert "leave /v1 out of base_url (http://HOST:PORT); Anthropic's SDK" in error_of(answer)["message"]


@pytest.mark.parametrize(("prefix", "is_anthropics"), [("/v1/v1", True), ("/v1", True), ("/v1/v1", False)])
def test_the_header_of_anthropics_clients_chooses_for_a_shared_path(api, prefix, is_anthropics):
    headers = {"anthropic-version": "2023-06-01"} if is_anthropics else {}
    answer = api.get(f"{prefix}/models", headers=headers)
    assert ("request-id" in answer.headers) is is_anthropics


def test_a_path_that_only_begins_alike_has_openais_format(api):
    answer = api.post(f"{MESSAGES}x", headers={"x-request-id": "gw-1"})
    assert answer.json()["error"]["code"] == "unknown_path"
    assert (answer.headers["x-request-id"], answer.headers.get("request-id")) == ("gw-1", None)


def test_the_id_of_the_request_is_repeated_in_both_headers_and_the_body(api):
    answer = api.post(f"{MESSAGES}/unknown", headers={"x-request-id": "gw-1"})
    assert error_of(answer)
    assert answer.headers.get_list("request-id") == answer.headers.get_list("x-request-id") == ["gw-1"]


def test_while_the_model_loads_it_is_overloaded(tiny_model):
    with live_server(tiny_model, is_ready=False) as server, httpx.Client(base_url=server.url) as client:
        answer = client.post(MESSAGES, json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert error_of(answer)["type"] == "overloaded_error"


def test_a_request_past_the_gateway_is_not_authenticated(tiny_model):
    digest = hashlib.sha256(b"token").hexdigest()
    with live_server(tiny_model, pod_token_sha256=(digest,)) as server:
        answer = httpx.post(server.url + MESSAGES, json={})
        assert (answer.status_code, error_of(answer)["type"]) == (401, "authentication_error")
