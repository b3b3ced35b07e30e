"""A pod with digests of the gateway's tokens: it answers the gateway and the operator, probes and scrapes."""

import hashlib

import httpx
import pytest
from fake_engine import live_server

TOKENS = ["a" * 64, "b" * 64]
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def pod(tiny_model):
    digests = tuple(hashlib.sha256(token.encode()).hexdigest() for token in TOKENS)
    with (
        live_server(tiny_model, pod_token_sha256=digests) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        yield client


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
def test_probes_and_metrics_need_no_token(pod, path):
    assert pod.get(path).status_code == 200


@pytest.mark.parametrize(
    "path", ["/state", "/v1/models", "/v1/models/tiny", "/nothing", "//state", "/readyz/"]
)
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("x-wisp-token", "")],
        [("x-wisp-token", "c" * 64)],
        [("authorization", f"Bearer {TOKENS[0]}")],
        [("x-wisp-token", TOKENS[0]), ("x-wisp-token", "c" * 64)],  # a client's beside the gateway's
    ],
)
def test_everything_else_is_refused_without_one(pod, path, headers):
    refused = pod.get(path, headers=headers)
    assert refused.status_code == 401
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("gateway_only", "invalid_request_error")
    assert "gateway's URL" in error["message"]


def test_a_refused_request_never_reaches_the_model(pod):
    assert pod.post("/v1/chat/completions", json=ASK).status_code == 401
    assert 'path="/v1' not in pod.get("/metrics").text


@pytest.mark.parametrize("token", TOKENS)
def test_the_token_of_each_key_opens_the_pod(pod, token):
    headers = {"x-wisp-token": token}
    assert pod.get("/state", headers=headers).status_code == 200
    assert pod.post("/v1/chat/completions", json=ASK, headers=headers).status_code == 200
