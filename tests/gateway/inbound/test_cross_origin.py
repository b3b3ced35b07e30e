"""Web pages that call the gateway from a browser: off by default, else the origins that are allowed."""

from __future__ import annotations

import pytest

from wisp_gateway.config import Config
from wisp_gateway.errors import StartError
from wisp_gateway.inbound.cross_origin import AllowedOrigins

PAGE, OTHER = "https://chat.example.com", "https://evil.example.com"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}
PATH = "/v1/chat/completions"


def allowed_origin(answer):
    return answer.headers.get("access-control-allow-origin")


def preflight(world, origin):
    return world.http.options(world.url + PATH, headers={"origin": origin, **PREFLIGHT})


def test_without_an_origin_no_page_may_call_it(world):
    world.model("m", world.pod())
    world.start()
    assert preflight(world, PAGE).status_code == 405
    assert allowed_origin(world.post(headers={"origin": PAGE})) is None


@pytest.mark.parametrize(
    ("allowed", "origin", "is_allowed"),
    [
        ((PAGE,), PAGE, True),
        ((OTHER, PAGE), PAGE, True),
        ((PAGE,), OTHER, False),
        ((PAGE,), f"{PAGE}.evil.example", False),
        ((PAGE,), "null", False),
        (("*",), OTHER, True),
        (("*",), "null", False),  # a sandboxed frame, or a file: no origin that can be named
    ],
)
def test_a_page_of_an_allowed_origin_may_ask_and_read_and_no_other(world, allowed, origin, is_allowed):
    world.model("m", world.pod())
    world.start(allow_origin=allowed)
    asked = preflight(world, origin)
    assert (asked.status_code == 200) == is_allowed
    if is_allowed:
        assert asked.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
        assert asked.headers["access-control-allow-methods"] == "GET, POST, DELETE"
    assert AllowedOrigins(allowed).allows(origin) == is_allowed
    answers = [
        world.post(headers={"origin": origin}),
        world.post(json={"model": "m", "messages": [], "stream": True}, headers={"origin": origin}),
        world.post(json={"model": "nobody"}, headers={"origin": origin}),  # a page should see why
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 404]
    for answer in (asked, *answers):
        assert allowed_origin(answer) == (origin if is_allowed else None)
        assert "access-control-allow-credentials" not in answer.headers
        assert answer.headers["vary"] == "origin"


def test_a_pod_cannot_open_the_gateway_to_a_page(world):
    world.model("m", world.pod(world.does.write(world.answer(200, b"{}", "access-control-allow-origin: *"))))
    assert allowed_origin(world.start().post(headers={"origin": OTHER})) is None


@pytest.mark.parametrize("origin", ["chat.example.com", f"{PAGE}/", f"{PAGE}/path", "", "https://a b"])
def test_what_is_no_origin_is_refused_at_start(tmp_path, origin):
    with pytest.raises(StartError, match="is no origin"):
        Config(tmp_path / "models.json", allow_origin=(origin,))
