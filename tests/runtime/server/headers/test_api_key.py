"""A server with API keys (``--api-key``), and the line at start about one without."""

import hashlib

import anthropic
import httpx
import openai
import pytest
from fake_engine import live_server

from wisp_runtime.config import ServeConfig
from wisp_runtime.server.process import access_line

KEYS = ["first", "second"]
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def server(tiny_model):
    digests = tuple(hashlib.sha256(key.encode()).hexdigest() for key in KEYS)
    with live_server(tiny_model, api_key=digests) as server:
        yield server


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
def test_probes_and_metrics_need_no_key(server, path):
    assert httpx.get(server.url + path).status_code == 200


@pytest.mark.parametrize("path", ["/state", "/v1/models", "/openapi.json", "/nothing"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer third"},
        {"authorization": "Basic first"},
        {"authorization": "Bearer third", "x-api-key": "first"},  # one key a request
        {"x-wisp-token": "first"},
    ],
)
def test_everything_else_is_refused_without_one(server, path, headers):
    refused = httpx.get(server.url + path, headers=headers)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
    assert "--api-key" in error["message"]


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "bearer  second"}, {"x-api-key": "first"}, {"authorization": "Bearer first"}],
)
def test_each_key_opens_it(server, headers):
    assert httpx.get(f"{server.url}/state", headers=headers).status_code == 200
    assert httpx.post(f"{server.url}/v1/chat/completions", json=ASK, headers=headers).status_code == 200


def test_the_official_clients_send_their_key(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="first") as client:
        assert client.chat.completions.create(**ASK).choices
    with anthropic.Anthropic(base_url=server.url, api_key="second") as client:
        assert client.messages.create(**ASK).content
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none") as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(**ASK)


@pytest.mark.parametrize(
    ("settings", "address", "is_open"),
    [
        ({}, "0.0.0.0", True),
        ({"host": "::"}, "::", True),
        ({"host": "10.0.0.7"}, "10.0.0.7", True),
        ({"host": "localhost"}, "127.0.0.1", False),
        ({"host": "::1"}, "::1", False),
        ({"pod_token_sha256": ("ab" * 32,)}, "0.0.0.0", False),  # a pod of the operator
    ],
)
def test_a_server_that_others_reach_without_a_key_says_so(settings, address, is_open):
    said = access_line(ServeConfig(model="m", **settings), address)
    remedies = (
        "--host 127.0.0.1 lets in this machine alone, --api-key KEY (WISP_API_KEY) callers with the key."
    )
    assert said.endswith(remedies) == bool(said) == is_open


@pytest.mark.parametrize(
    ("keys", "said"), [(1, "requests need the key of"), (2, "requests need one of 2 keys of")]
)
def test_a_server_with_keys_says_so_wherever_it_listens(keys, said):
    config = ServeConfig(model="m", api_key=("ab" * 32,) * keys)
    assert all(access_line(config, address).startswith(said) for address in ("0.0.0.0", "127.0.0.1"))
