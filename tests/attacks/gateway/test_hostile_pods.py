"""Pods of a tenant that attack the gateway in front of all tenants (A4, C)."""

import time

import pytest
from attack import attack
from neighbour import MIB

MAX_BYTES = 64 * MIB
OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
JSON = OK + b"content-type: application/json\r\n"
ENDLESS = {
    "header value": (OK + b"a: ", b"x" * 65536),
    "header after header": (OK, b"a: b\r\n" * 8192),
    "status line": (b"HTTP/1.1 200 ", b"x" * 65536),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2048),
    "early hints": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 2048),
    "chunk extension": (STREAM + b"1;", b"x" * 65536),
    "chunk size": (STREAM, b"0" * 65536),
    "trailers": (STREAM + b"0\r\n", b"a: b\r\n" * 8192),
    "event": (STREAM + b"ffffffff\r\ndata: ", b"x" * 65536),
    "answer without a length": (JSON + b"connection: close\r\n\r\n", b"[" * 65536),
    "answer of a terabyte": (JSON + b"content-length: 1099511627776\r\n\r\n", b"[" * 65536),
    "chunked answer": (JSON + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b"[" * 65536 + b"\r\n"),
    "garbage": (b"", b"\x00\xff" * 32768),
    "empty lines": (b"", b"\r\n" * 32768),
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(("head", "chunk"), ENDLESS.values(), ids=ENDLESS)
@attack("A4")
def test_an_answer_without_an_end(gateway, head, chunk, stream):
    sent = 0

    def flood(connection, _):
        nonlocal sent
        connection.sendall(head)
        deadline = time.monotonic() + 1.5
        while sent < MAX_BYTES and time.monotonic() < deadline:
            connection.sendall(chunk)
            sent += len(chunk)

    gateway.pod_of("endless", flood)
    gateway.ask("endless", 2, stream=stream)


@attack("new")
def test_a_pod_that_answers_its_probe_without_an_end(gateway):
    """Pods that are not ready are probed while requests wait."""
    pod = gateway.pod_of("probed", lambda connection, _: connection.close())
    pod.answers_probe_with(b"HTTP/1.1 200 OK\r\na: ", b"x" * 65536)
    hold = {"mode": "Hold", "maxWaitSeconds": 3, "heartbeatSeconds": 1, "queueLimit": 128}
    gateway.directory.put("probed", pod.address, state="Waking", coldStart=hold, ready=False)
    gateway.until_seen()
    assert gateway.ask("probed", 8).status in (0, 502, 503)


@attack("C poison requests")
def test_a_request_under_which_a_pod_dies_takes_one_more_at_most(gateway):
    deaths = 0

    def die(connection, _):
        nonlocal deaths
        deaths += 1
        connection.close()

    gateway.pods_of("fragile", [die] * 4)
    assert gateway.ask("fragile").status in (502, 503)
    assert deaths <= 2
