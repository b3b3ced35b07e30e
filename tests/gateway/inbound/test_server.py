"""Limits of the client side: time for a head and a body, the number of connections."""

from __future__ import annotations

import socket

from raw_client import HEAD, connect, read_all, request


def test_a_body_that_does_not_arrive_is_given_up(world):
    world.model("m", world.pod())
    world.start(body_timeout_s=0.3)
    with connect(world) as connection:
        connection.sendall(HEAD + b'content-length: 100\r\n\r\n{"model"')
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code": "request_timeout"' in answer
    assert world.post().status_code == 200


def test_a_refused_client_may_not_go_on_sending_for_ever(world):
    world.model("m", world.pod())
    world.start(body_timeout_s=0.3, max_body_bytes=10)
    with connect(world) as connection:
        connection.sendall(HEAD + b"content-length: 100000\r\n\r\n{")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_the_time_for_a_body_is_not_the_time_for_an_answer(world):
    world.model("m", world.pod(world.does.talk(1, gap_s=2.5)))
    world.start(body_timeout_s=2, header_timeout_s=2)
    assert world.text_of(world.chat(stream=True)) == "w0 "


def test_a_connection_over_the_limit_is_refused_but_probes_are_answered(world):
    world.model("m", world.pod())
    world.start(max_connections=3)
    idle = [connect(world) for _ in range(3)]
    refused = world.post()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
    assert refused.headers["retry-after"] == "1"
    for path in ("/livez", "/readyz", "/metrics"):
        assert world.http.get(world.url + path, headers={"connection": "close"}).status_code == 200
    for connection in idle:
        connection.close()
    world.until(lambda: world.post().status_code == 200)


def test_an_idle_connection_over_the_limit_is_closed_soon(world):
    world.start(max_connections=1)
    with connect(world), connect(world) as surplus:
        assert read_all(surplus) == b""


def test_one_address_cannot_take_every_connection(world):
    world.model("m", world.pod())
    world.start(max_connections=100, max_connections_per_address=3)
    idle = [connect(world) for _ in range(3)]
    refused = world.post()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
    with socket.socket() as other:
        other.settimeout(60)
        other.bind(("127.0.0.2", 0))
        other.connect(("127.0.0.1", world.gateway.config.port))
        other.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        assert other.recv(65536).startswith(b"HTTP/1.1 200 ")
    for connection in idle:
        connection.close()
    world.until(lambda: world.post().status_code == 200)
    world.until(lambda: len(world.gateway.server._protocol.addresses) <= 1)


def test_long_requests_sent_before_the_first_answer_are_all_answered(world):
    """Nothing is read while one waits behind another, and everything is in the end."""
    world.model("m", world.pod(world.does.talk(1, gap_s=0.1)))
    world.start()
    body = {"model": "m", "prompt": "x" * 200_000}
    with connect(world, timeout_s=60) as connection:
        sending = world.background(lambda: connection.sendall(request(**body) * 5))
        received = b""
        while received.count(b"HTTP/1.1 200 ") < 5 or not received.endswith(b"}"):
            received += connection.recv(65536)
        sending.result(60)
