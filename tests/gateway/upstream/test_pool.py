"""Headers between client and pod: neither side gets the other's connection or credentials."""

from __future__ import annotations

import pytest

from wisp_gateway.upstream.pool import answer_headers, request_head

INERT = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
]


def test_the_pod_never_sees_the_clients_key_nor_its_connections_headers():
    headers = [
        (b"authorization", b"Bearer secret"), (b"x-api-key", b"secret"), (b"cookie", b"secret"),
        (b"host", b"gw"),
        (b"connection", b"close, x-private"), (b"x-private", b"1"), (b"te", b"trailers"), (b"accept", b"*/*"),
        (b"transfer-encoding", b"chunked"), (b"accept-encoding", b"gzip"), (b"traceparent", b"00-1"),
    ]  # fmt: skip
    head = request_head("POST", "/v1/x", "pod:1", headers, body_bytes=3)
    lines = ["POST /v1/x HTTP/1.1", "host: pod:1", "content-length: 3", "accept: */*", "traceparent: 00-1"]
    assert head.decode() == "\r\n".join([*lines, "", ""])


def test_headers_that_pods_trust_come_from_the_gateway_alone():
    forged = [(b"x-wisp-token", b"0" * 64), (b"x-wisp-priority", b"high"), (b"connection", b"x-wisp-token")]
    head = request_head("POST", "/v1/x", "pod:1", forged, body_bytes=0, own=[(b"x-wisp-token", b"real")])
    assert head.decode().split("\r\n")[3:] == ["x-wisp-token: real", "", ""]


def test_the_client_gets_the_pods_headers_without_framing_and_identity():
    headers = [(b"content-type", b"x"), (b"content-length", b"3"), (b"server", b"u"), (b"x-tokens", b"9")]
    assert answer_headers(headers) == [(b"content-type", b"x"), (b"x-tokens", b"9"), *INERT]


@pytest.mark.parametrize(
    "name", [b"set-cookie", b"alt-svc", b"strict-transport-security", b"clear-site-data", b"location", b"nel"]
)
def test_a_pod_speaks_for_its_answer_and_not_for_the_address_that_all_models_share(name):
    """A tenant's cookie, or its redirect, would go with the client's requests to other models."""
    assert answer_headers([(name, b"x"), (b"retry-after", b"1")]) == [(b"retry-after", b"1"), *INERT]


def test_a_page_that_a_pod_sends_runs_nothing_in_the_origin_of_the_gateways_own(world):
    html = b"<script>fetch('/state')</script>"
    lax = ["x-content-type-options: sniff", "content-security-policy: default-src *"]
    page = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n" % len(html)
    pages = [page + "\r\n".join([*lax, "", ""]).encode() + html, world.answer(200, b"{}"), world.STREAM_HEAD]
    pages[2] += world.framed(world.event("w")) + b"0\r\n\r\n"
    world.start()
    for page in pages:
        world.model("m", world.pod(world.does.write(page)))
        got = world.post()
        assert got.status_code == 200
        for name, value in INERT:
            assert got.headers.get_list(name.decode()) == [value.decode()]
