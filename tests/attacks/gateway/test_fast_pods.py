"""Pods that stream as fast as they can: nobody else's tokens wait behind theirs."""

import threading
import time

from attack import attack
from wire import CHAT_PATH, chat, post

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@attack("new")
def test_a_pod_that_streams_as_fast_as_it_can(gateway):
    event = b'data: {"choices":[{"index":0,"delta":{"content":"w"}}]}\n\n'
    chunk = (b"%x\r\n%b\r\n" % (len(event), event)) * 1000

    def flood(connection, _):
        connection.sendall(STREAM)
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            connection.sendall(chunk)
        connection.sendall(b"0\r\n\r\n")

    gateway.pod_of("fast", flood)

    def read():
        with gateway.connect(timeout_s=4) as client:
            client.send(post(CHAT_PATH, chat("fast", stream=True))).read(1 << 30)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
