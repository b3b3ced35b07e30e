"""Bodies made to be slow to parse, or large to hold (A5)."""

import time

import pytest
from attack import attack
from json_bodies import bodies
from neighbour import MIB
from wire import CHAT_PATH, post

SIZE = 8 * MIB - 4096  # the limit of a body before this suite was written
REFUSED = (400, 413, 429)


BODIES = bodies(SIZE)


@pytest.mark.parametrize("make", BODIES.values(), ids=BODIES)
@attack("A5")
def test_a_body_of_eight_mebibytes(gateway, make):
    with gateway.connect() as client:
        assert client.send(post(CHAT_PATH, make())).answer().status in (200, 404, *REFUSED)


@attack("A5")
def test_a_hundred_bodies_announced_and_half_sent(gateway):
    half = b" " * (MIB // 2)
    clients = [gateway.connect() for _ in range(100)]
    for client in clients:
        client.send(post(CHAT_PATH, half, length=MIB - 1))
    time.sleep(5)
    assert all(client.is_closed(30) for client in clients), "the body's time of 4 s is over"


@attack("use 8")
def test_a_client_that_writes_everything_before_it_reads_is_answered_413(gateway):
    with gateway.connect() as client:
        assert client.send(post(CHAT_PATH, b" " * (9 * MIB))).answer().status == 413
