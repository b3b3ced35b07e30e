"""Ctrl-C of ``wisp up`` while a stream runs longer than the gateway drains."""

import signal
import threading
import time

from running_up import manifest, up


def test_a_stream_that_outlives_the_drain_ends_with_its_error_event(tmp_path):
    answers = []
    with up(tmp_path, manifest(fake={"tokens": 400, "token_s": 0.1})) as running:
        asking = threading.Thread(target=lambda: answers.append(running.ask(stream=True)))
        asking.start()
        while not running.state()["endpoints"] or not running.state()["running"]:
            time.sleep(0.1)
        time.sleep(0.5)
        running.process.send_signal(signal.SIGINT)
        asking.join(20)
        assert running.process.wait(15) == 0
    ((status, body),) = answers
    assert status == 200
    assert '"code": "gateway_stopping"' in body
