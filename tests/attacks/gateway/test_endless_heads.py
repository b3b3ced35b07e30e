"""Requests that never end: refused after a bound, whatever they consist of (A4)."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from attack import attack
from endless import BODIES, HEADS, MAX_BYTES, TAKEN_BYTES, require_refusal
from wire import CHAT_PATH, post


@pytest.mark.parametrize(("head", "chunk"), HEADS.values(), ids=HEADS)
@attack("A4")
def test_a_head_without_an_end(gateway, head, chunk):
    require_refusal(gateway, head, chunk)


@pytest.mark.parametrize(("head", "chunk"), BODIES.values(), ids=BODIES)
@attack("A4")
def test_a_chunked_body_without_an_end(gateway, head, chunk):
    start = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\n".encode()
    require_refusal(gateway, start + head, chunk)


@attack("A4")
def test_eight_heads_without_an_end_at_once(gateway):
    def flood(_):
        with gateway.connect() as client:
            return client.flood(*HEADS["header value"], max_bytes=MAX_BYTES)

    with ThreadPoolExecutor(8) as attackers:
        assert max(attackers.map(flood, range(8))) < TAKEN_BYTES


@attack("A4")
def test_two_hundred_heads_that_arrive_a_byte_a_second(gateway):
    clients = [gateway.connect() for _ in range(200)]
    for _ in range(4):
        for client in clients:
            client.send(b"G")
        time.sleep(1)
    assert all(client.is_closed(30) for client in clients), "the head's time of 3 s is over"


@attack("A4")
def test_two_hundred_bodies_that_arrive_a_byte_a_second(gateway):
    clients = [gateway.connect().send(post(CHAT_PATH, b"", length=9999)) for _ in range(200)]
    for _ in range(5):
        for client in clients:
            client.send(b" ")
        time.sleep(1)
    assert all(client.is_closed(30) for client in clients), "the body's time of 4 s is over"


@attack("new")
def test_five_hundred_connections_that_say_nothing(gateway):
    clients = [gateway.connect() for _ in range(500)]
    time.sleep(4)
    assert all(client.is_closed(30) for client in clients), "the head's time of 3 s is over"


@attack("new")
def test_a_thousand_connections_closed_before_a_word(gateway):
    for _ in range(1000):
        gateway.connect().close()
