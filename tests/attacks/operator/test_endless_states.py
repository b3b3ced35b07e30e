"""States of pods that never end, or never come (A2)."""

import time

import pytest
from attack import attack

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ENDLESS = {
    "header": (HEAD + b"a: ", b"x" * 65536),
    "headers": (HEAD, b"a: b\r\n" * 8192),
    "body": (HEAD + b"content-length: 99999999999\r\n\r\n{", b" " * 65536),
    "chunks": (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65536 + b"\r\n"),
    "chunk extension": (HEAD + b"transfer-encoding: chunked\r\n\r\n1;", b"x" * 65536),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2048),
}


@pytest.mark.parametrize(("head", "chunk"), ENDLESS.values(), ids=ENDLESS)
@attack("A2")
def test_a_state_without_an_end(target, head, chunk):
    def flood(connection, _):
        connection.sendall(head)
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            connection.sendall(chunk)

    target.pods_say(flood)


@attack("A2")
def test_fifty_pods_that_never_answer(target):
    target.pods_say(lambda *_: time.sleep(5), 50)
    time.sleep(2)
