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
        ("GET", "/v1/models", Route("list")),
        ("HEAD", "/v1/models", Route("list")),
        ("GET", "/ns/m/v1/models", Route("list", model="ns/m")),
        ("GET", "/v1/models/ns/m", Route("show", id="ns/m")),
        ("GET", "/livez", Route("livez")),
        ("GET", "/v1/completions", MethodNotAllowed),
        ("DELETE", "/v1/models/m", MethodNotAllowed),
        ("POST", "/readyz", MethodNotAllowed),
        ("GET", "/", NotFound),
        ("GET", "/v1", NotFound),
        ("GET", "/v1/models/", NotFound),
        ("POST", "/v1/embeddings", NotFound),
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
