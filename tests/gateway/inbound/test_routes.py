"""Paths and methods of the gateway: one row a request."""

from __future__ import annotations

import pytest

from wisp_gateway.errors import MethodNotAllowed, NotFound
from wisp_gateway.inbound import routes
from wisp_gateway.inbound.routes import Route


@pytest.mark.parametrize(
    ("method", "path", "expect"),
    [
        ("POST", "/v1/chat/completions", Route("generate", "/v1/chat/completions")),
        ("POST", "/openai/v1/completions", Route("generate", "/v1/completions")),
        ("POST", "/ns/m/v1/completions", Route("generate", "/v1/completions", "ns/m")),
        ("POST", "/v1/messages", Route("generate", "/v1/messages")),
        ("POST", "/ns/m/v1/messages/count_tokens", Route("generate", "/v1/messages/count_tokens", "ns/m")),
        ("POST", "/openai/v1/responses", Route("generate", "/v1/responses")),
        ("POST", "/v1/responses/input_tokens", Route("generate", "/v1/responses/input_tokens")),
        ("GET", "/v1/responses/resp_1", Route("stored", "/v1/responses/resp_1", id="resp_1")),
        ("DELETE", "/ns/m/v1/responses/r", Route("stored", "/v1/responses/r", "ns/m", "r")),
        ("POST", "/v1/responses/r/cancel", Route("stored", "/v1/responses/r/cancel", id="r")),
        ("GET", "/v1/responses/r/input_items", Route("stored", "/v1/responses/r/input_items", id="r")),
        ("POST", "/v1/responses/r", MethodNotAllowed),
        ("HEAD", "/v1/responses/r", MethodNotAllowed),
        ("GET", "/v1/responses/r/cancel", MethodNotAllowed),
        ("GET", "/v1/responses", MethodNotAllowed),  # OpenAI has no list of them
        ("GET", "/v1/responses/", NotFound),
        ("GET", "/v1/responses/a\r\nb", NotFound),  # it would end the request's line at the pod
        ("GET", "/v1/responses/r/other", NotFound),
        ("POST", "/v1/messages/batches", NotFound),
        ("GET", "/v1/models", Route("list")),
        ("HEAD", "/v1/models", Route("list")),
        ("GET", "/ns/m/v1/models", Route("list", model="ns/m")),
        ("GET", "/v1/models/ns/m", Route("show", id="ns/m")),
        ("GET", "/livez", Route("livez")),
        ("GET", "/v1/completions", MethodNotAllowed),
        ("DELETE", "/v1/models/m", MethodNotAllowed),
        ("POST", "/readyz", MethodNotAllowed),
        ("GET", "/", Route("page", id="index.html")),
        ("HEAD", "/page/app.js", Route("page", id="app.js")),
        ("GET", "/page/views/models.js", Route("page", id="views/models.js")),
        ("GET", "/page/v1/models", Route("page", id="v1/models")),  # no endpoint: two names precede v1
        ("GET", "/page/m/v1/models", Route("list", model="page/m")),  # a namespace may be called page
        ("GET", "/page/a/b/c.js", NotFound),
        ("GET", "/page/", NotFound),
        ("POST", "/", MethodNotAllowed),
        ("GET", "/v1", NotFound),
        ("GET", "/v1/models/", NotFound),
        ("POST", "/v1/embeddings", Route("generate", "/v1/embeddings")),
        ("POST", "/ns/m/v1/rerank", Route("generate", "/v1/rerank", "ns/m")),
        ("POST", "/rerank", Route("generate", "/v1/rerank")),
        ("POST", "/v2/rerank", Route("generate", "/v2/rerank")),
        ("POST", "/score", Route("generate", "/v1/score")),
        ("POST", "/tokenize", Route("generate", "/v1/tokenize")),
        ("POST", "/ns/m/v1/detokenize", Route("generate", "/v1/detokenize", "ns/m")),
        ("GET", "/tokenize", MethodNotAllowed),
        ("GET", "/v1/embeddings", MethodNotAllowed),
        ("POST", "/v2/embeddings", NotFound),
        ("POST", "/v1/audio/speech", NotFound),
        ("POST", "//m/v1/completions", NotFound),
        ("POST", "/a/b/c/v1/completions", NotFound),
    ],
)
def test_method_and_path_give_a_route(method, path, expect):
    if isinstance(expect, Route):
        assert routes.find(method, path) == expect
    else:
        with pytest.raises(expect):
            routes.find(method, path)


@pytest.mark.parametrize(
    ("path", "base_url"),
    [
        ("/v1/v1/messages", "leave /v1 out of base_url (http://HOST:PORT); Anthropic's SDK adds it"),
        ("/ns/m/v1/v1/messages", "out of base_url (http://HOST:PORT/ns/m);"),
        ("/chat/completions", "set base_url to http://HOST:PORT/v1,"),
        ("/openai/chat/completions", "set base_url to http://HOST:PORT/openai/v1,"),
        ("/v1/chat/completions/chat/completions", "set base_url to http://HOST:PORT/v1,"),
    ],
)
def test_a_path_that_shows_a_wrong_base_url_is_answered_with_the_right_one(path, base_url):
    with pytest.raises(NotFound) as refused:
        routes.find("POST", path)
    assert base_url in refused.value.message


def test_a_refused_method_is_answered_with_those_that_do():
    with pytest.raises(MethodNotAllowed) as refused:
        routes.find("PUT", "/v1/responses/r")
    assert (b"allow", b"GET, DELETE") in refused.value.headers()
