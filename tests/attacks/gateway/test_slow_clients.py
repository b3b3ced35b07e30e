"""Clients that do not read, or go away: their place at a pod is free, and nobody waits for them (A8)."""

import time

import pytest
from attack import attack
from gateway_target import GatewayTarget
from neighbour import MIB
from wire import CHAT_PATH, chat, post

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"w" * 4000 + b'"}}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def talkative(connection, data):
    """Answer a stream with 16 MiB, another request at once."""
    if b'"stream": true' not in data:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
        )
        return
    connection.sendall(HEAD)
    for _ in range(4096):
        connection.sendall(CHUNK)
    connection.sendall(DONE)


@attack("A8")
def test_two_clients_that_do_not_read_keep_no_place_at_a_pod(gateway):
    hold = {"mode": "Hold", "maxWaitSeconds": 20, "heartbeatSeconds": 1, "queueLimit": 128}
    gateway.pod_of("narrow", talkative, targetConcurrency=2, coldStart=hold)
    clients = [gateway.connect(receive_buffer=4096) for _ in range(2)]
    for client in clients:
        client.send(post(CHAT_PATH, chat("narrow", stream=True)))
    time.sleep(0.5)
    with gateway.connect(timeout_s=20) as honest:
        assert honest.send(post(CHAT_PATH, chat("narrow"))).answer().status == 200


@attack("A8")
def test_fifty_clients_that_do_not_read_hold_little_memory(gateway):
    gateway.pod_of("wide", talkative, targetConcurrency=1000)
    clients = [gateway.connect(receive_buffer=4096) for _ in range(50)]
    for client in clients:
        client.send(post(CHAT_PATH, chat("wide", stream=True)))
    time.sleep(3)


@attack("A8")
def test_a_hundred_streams_cut_by_their_clients(gateway):
    for _ in range(100):
        with gateway.connect() as client:
            client.send(post(CHAT_PATH, chat("mine", stream=True, max_tokens=50)))


@attack("C pipelined garbage")
def test_garbage_behind_a_streaming_request_never_gets_into_its_answer(gateway):
    with gateway.connect() as client:
        client.send(post(CHAT_PATH, chat("mine", stream=True, max_tokens=20)))
        time.sleep(0.1)
        client.send(b"\x00garbage\r\n\r\n")
        assert client.answer().body.count(b"HTTP/1.1") == 0


@attack("C pipelined garbage")
def test_a_late_body_behind_a_streaming_request_never_gets_into_its_answer(gateway):
    with gateway.connect() as client:
        client.send(post(CHAT_PATH, chat("mine", stream=True, max_tokens=300)))
        client.send(post(CHAT_PATH, b"{", length=100))
        assert b"HTTP/1.1" not in client.answer().body


@attack("C pipelined garbage")
def test_a_thousand_pipelined_requests(gateway):
    with gateway.connect() as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
        client.answer()


@pytest.fixture
def stopping(tmp_path):
    """A gateway of the test's own, to be stopped."""
    target = GatewayTarget(tmp_path, "--drain-timeout-s", "1", "--shutdown-delay-s", "0")
    yield target
    target.close()


def test_a_client_that_does_not_read_does_not_keep_a_gateway_from_stopping(stopping):
    stopping.pod_of("wide", talkative, targetConcurrency=1000)
    client = stopping.connect(receive_buffer=4096)
    client.send(post(CHAT_PATH, chat("wide", stream=True)))
    time.sleep(1)
    stopping.gateway.terminate()
    assert stopping.gateway.wait(60) == 0


@attack("new")
def test_an_answer_of_the_gateway_that_nobody_reads(gateway):
    with gateway.connect(receive_buffer=4096) as client:
        client.flood(b"", b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 500, max_bytes=32 * MIB, max_s=6)
