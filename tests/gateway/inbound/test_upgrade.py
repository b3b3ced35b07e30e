"""Requests to change the protocol are ignored, and their bodies stay bodies."""

from __future__ import annotations

import json
import time

import pytest
from raw_client import connect, read_until, request

UPGRADE = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQ")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
def test_the_body_of_a_request_to_upgrade_is_read_as_its_body(world, pause_s):
    """Java's HttpClient sends this, and a proxy may pass it on; ``pause_s`` parts head and body."""
    pod = world.pod()
    world.model("m", pod)
    world.start()
    smuggled = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
    head, separator, body = request("/v1/chat/completions", *UPGRADE, **{**CHAT, "user": smuggled}).partition(
        b"\r\n\r\n"
    )
    with connect(world) as connection:
        connection.sendall(head + separator)
        time.sleep(pause_s)
        connection.sendall(body + b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        received = read_until(connection, b"ok\n")
    assert received.count(b"HTTP/1.1 200 ") == received.count(b"HTTP/1.1 ") == 2
    assert json.loads(pod.seen[0].body)["user"] == smuggled
    assert not {"upgrade", "connection", "http2-settings"} & pod.seen[0].headers.keys()


def test_bytes_that_follow_a_request_to_upgrade_are_never_a_request_of_their_own(world):
    world.start()
    smuggled = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    lines = ["POST /v1/completions HTTP/1.1", "host: x", *UPGRADE, f"content-length: {len(smuggled)}"]
    with connect(world) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        time.sleep(0.2)
        connection.sendall(smuggled)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(65536)


def test_a_tunnel_is_refused_and_closed(world):
    world.start()
    with connect(world) as connection:
        connection.sendall(b"CONNECT /livez HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        received = connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 400 ")
        assert b"connection: close" in received
