"""Clients that take a model's whole queue: another key's requests get in, and get their turn."""

import threading
import time

from attack import attack
from machine_pace import pace
from wire import CHAT_PATH, chat, post

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
HOLD = {"mode": "Hold", "maxWaitSeconds": 20, "heartbeatSeconds": 1, "queueLimit": 32}


def slow(connection, _):
    time.sleep(0.2)
    connection.sendall(OK)


@attack("new")
def test_a_key_that_fills_the_queue_of_a_model(gateway):
    """Sixty clients send on and on; 6 of their requests a second fit."""
    keys = gateway.folder / "two-keys"
    keys.write_text("first:the-first-key\nsecond:the-second-key\n")
    gateway.pod_of("shared", slow, targetConcurrency=2, coldStart=HOLD, apiKeysFile=str(keys))
    is_over = threading.Event()

    def ask(key):
        with gateway.connect(timeout_s=20) as client:
            return (
                client.send(post(CHAT_PATH, chat("shared"), f"authorization: Bearer {key}")).answer().status
            )

    def take():
        while not is_over.is_set():
            ask("the-first-key")

    takers = [threading.Thread(target=take, daemon=True) for _ in range(60)]
    for taker in takers:
        taker.start()
    time.sleep(1.5)
    waits_s = []
    with pace() as machine:
        for _ in range(5):
            began_s = time.monotonic()
            assert ask("the-second-key") == 200
            waits_s.append(time.monotonic() - began_s)
    is_over.set()
    for taker in takers:
        taker.join()
    assert max(waits_s) < 3 * machine.stretch
