"""Requests that two parsers might read differently: refused, and nothing of them reaches a pod (E)."""

import pytest
from attack import attack
from wire import CHAT_PATH, chat, get, post

BODY = chat("recorded")
SMUGGLED = get("/v1/models")
HEADS = {
    "content-length and transfer-encoding": [f"content-length: {len(BODY)}", "transfer-encoding: chunked"],
    "unknown transfer-encoding": ["transfer-encoding: xchunked"],
    "chunked hidden in a list": ["transfer-encoding: chunked, identity"],
    "two content-lengths": [f"content-length: {len(BODY)}", "content-length: 1"],
    "content-length with a sign": [f"content-length: +{len(BODY)}"],
    "content-length of 20 digits": ["content-length: 99999999999999999999"],
    "negative content-length": ["content-length: -1"],
    "space before the colon": [f"content-length : {len(BODY)}"],
    "folded header": [f"content-length: {len(BODY)}", "a: b", " c: d"],
    "carriage return in a value": [f"content-length: {len(BODY)}", "a: b\rc: d"],
    "NUL in a value": [f"content-length: {len(BODY)}", "a: b\0c"],
    "name that is no token": [f"content-length: {len(BODY)}", "a@\x01: b"],
}


@pytest.fixture
def recorded(gateway):
    """A pod that counts requests."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    return gateway.pod_of("recorded", lambda connection, _: connection.sendall(answer))


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@attack("E")
def test_a_head_that_two_parsers_read_differently_is_400(gateway, recorded, head):
    lines = [f"POST {CHAT_PATH} HTTP/1.1", "host: x", "content-type: application/json", *head]
    with gateway.connect(timeout_s=6) as client:
        client.send("\r\n".join([*lines, "", ""]).encode("latin-1") + BODY + SMUGGLED)
        assert client.read().count(b"HTTP/1.1 ") == 1
    assert recorded.requests == 0


@attack("E")
def test_a_bare_line_feed_ends_no_header(gateway, recorded):
    with gateway.connect(timeout_s=6) as client:
        client.send(post(CHAT_PATH, BODY).replace(b"\r\n", b"\n"))
        assert client.answer().status == 400
    assert recorded.requests == 0


@attack("E")
def test_headers_of_the_client_that_are_nobody_elses_business_stay_at_the_gateway(gateway):
    seen = []
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"

    def record(connection, data):
        seen.append(data.lower())
        connection.sendall(answer)

    gateway.pod_of("curious", record)
    secret = ["authorization: Bearer s3cret", "cookie: s3cret", "x-api-key: s3cret", "x-hop: s3cret"]
    with gateway.connect() as client:
        client.send(post(CHAT_PATH, chat("curious"), *secret, "connection: x-hop"))
        assert client.answer().status == 200
    assert b"s3cret" not in b"".join(seen)


@attack("E")
def test_a_path_that_climbs_names_no_model_and_no_file(gateway):
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/state", "//v1/models", "/default/../v1/models"):
        with gateway.connect() as client:
            assert client.send(get(path)).answer().status in (400, 401, 404)
