"""Answers of a pod that are no HTTP, or not what they say: an error for its client, not a word to others."""

import time

import pytest
from attack import attack

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
MALFORMED = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "status 0": b"HTTP/1.1 000 X\r\ncontent-length: 0\r\n\r\n",
    "status 999": b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n",
    "upgrade": b"HTTP/1.1 101 X\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "negative length": JSON + b"content-length: -5\r\n\r\n{}",
    "two lengths": JSON + b"content-length: 2\r\ncontent-length: 4\r\n\r\n{}{}",
    "redirect": b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    "two answers": JSON + b"content-length: 2\r\n\r\n{}" + JSON + b"content-length: 4\r\n\r\nevil",
    "header with a line feed": JSON + b"a: b\nset-cookie: c\r\ncontent-length: 2\r\n\r\n{}",
    "no JSON": JSON + b"content-length: 4\r\n\r\n\xff\xfe\x00\x01",
    "depth": JSON + b"content-length: 1000000\r\n\r\n" + b"[" * 1_000_000,
}


@pytest.mark.parametrize("answer", MALFORMED.values(), ids=MALFORMED)
@attack("new")
def test_an_answer_that_is_malformed(gateway, answer):
    def reply(connection, _):
        connection.sendall(answer)
        connection.close()

    gateway.pod_of("malformed", reply)
    head = gateway.ask("malformed").head
    assert b"set-cookie" not in head.lower()


@attack("new")
def test_a_pod_that_answers_a_byte_a_second(gateway):
    def drip(connection, _):
        for byte in b"HTTP/1.1 200 OK\r\n":
            connection.sendall(bytes([byte]))
            time.sleep(0.2)

    gateway.pod_of("dripping", drip)
    for _ in range(3):
        gateway.ask("dripping", 0.5)
