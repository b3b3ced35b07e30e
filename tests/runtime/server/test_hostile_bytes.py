"""Bytes that no gateway sends: the port may be open to a namespace, or to a cluster."""

from __future__ import annotations

import contextlib
import json
import socket

import httpx
import pytest
from fake_engine import END, live_server, tokens_of

from wisp_runtime.server.http.server import _Protocol

MIB = 1 << 20
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def connect(server, receive_buffer_bytes=None):
    connection = socket.socket()
    connection.settimeout(5)
    if receive_buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    connection.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    return connection


@pytest.mark.parametrize(
    ("before", "part"),
    [
        (b"GET /livez HTTP/1.1\r\na: ", b"x"),
        (b"GET /livez HTTP/1.1\r\n", b"a: b\r\n"),
        (b"GET /", b"x"),
        (CHAT + b"transfer-encoding: chunked\r\n\r\n1;", b"x"),
    ],
)
def test_heads_and_framing_are_bounded_by_their_raw_bytes(server, before, part):
    sent = 0
    with connect(server) as connection:
        connection.sendall(before)
        with contextlib.suppress(ConnectionError, TimeoutError):
            while sent < 32 * MIB:
                sent += connection.send(part * 2048)
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    if connection.recv(1, socket.MSG_PEEK):
                        break
                connection.settimeout(5)
        connection.settimeout(5)
        answer = connection.recv(65536)
    assert sent < 8 * MIB
    assert answer.split()[1] in (b"431", b"400")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


def test_an_unfinished_body_delays_no_stop(tiny_model):
    with live_server(tiny_model, drain_timeout_s=600) as server, connect(server) as connection:
        connection.sendall(CHAT + b"content-length: 100\r\n\r\n{")
        server.wait_until(lambda: len(server.server._web.server_state.tasks) == 1)
        assert server.server.service.active == 0
        server.stop()
        answer = connection.recv(65536)
        assert server.join() is None
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"server_stopping" in answer


def test_a_body_that_ends_while_the_server_drains_is_refused(tiny_model):
    content = json.dumps(ASK).encode()
    with live_server(tiny_model, drain_timeout_s=10) as server:
        server.engine.script = lambda _: [*tokens_of("x" * 100), END]
        server.engine.delay_s = 0.01
        with connect(server) as late, connect(server) as running:
            head = CHAT + b"content-length: %d\r\n\r\n" % len(content)
            late.sendall(head + content[:-1])
            running.sendall(head + content)
            server.wait_until(lambda: len(server.engine.submitted) == 1)
            server.stop()
            server.wait_until(lambda: server.server.service.is_draining)
            late.sendall(content[-1:])
            assert late.recv(65536).startswith(b"HTTP/1.1 503 ")
            assert running.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_does_not_read_is_cut_off_and_its_sequences_are_aborted(tiny_model, monkeypatch):
    limits = type(_Protocol.limits)(write_timeout_s=0.5, min_write_bytes=1)
    monkeypatch.setattr(_Protocol, "limits", limits)
    with live_server(tiny_model) as server, connect(server, receive_buffer_bytes=4096) as silent:
        server.engine.script = lambda _: tokens_of("y" * 400)
        server.engine.delay_s = 0.001
        body = ASK | {"stream": True, "n": 64, "max_tokens": 400}
        content = json.dumps(body).encode()
        silent.sendall(CHAT + b"content-length: %d\r\n\r\n" % len(content) + content)
        server.wait_until(lambda: server.server.service.active == 1)
        server.wait_until(lambda: server.server.service.active == 0)
        assert (
            httpx.post(f"{server.url}/v1/chat/completions", json=ASK | {"max_tokens": 9}).status_code == 200
        )


def test_a_refused_client_that_writes_all_before_it_reads_sees_the_answer(server):
    with connect(server) as connection:
        connection.sendall(CHAT + b"connection: close\r\ncontent-length: %d\r\n\r\n" % (24 * MIB))
        for _ in range(24):
            connection.sendall(b"x" * MIB)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_garbage_behind_a_request_does_not_reach_into_its_answer(server):
    server.engine.script = lambda _: [*tokens_of("x" * 50), END]
    server.engine.delay_s = 0.01
    content = json.dumps(ASK | {"stream": True}).encode()
    with connect(server) as connection:
        connection.sendall(CHAT + b"content-length: %d\r\n\r\n" % len(content) + content)
        received = connection.recv(65536)
        connection.sendall(b"NONSENSE\r\n\r\n")
        while chunk := connection.recv(65536):
            received += chunk
    assert received.count(b"HTTP/1.1") == 1
    assert b"[DONE]" in received
