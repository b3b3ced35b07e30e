"""Ctrl-C of ``wisp up`` while a stream runs longer than the gateway drains."""

import signal
import threading

import pytest
from running_up import manifest, up


@pytest.mark.parametrize("interrupts", [1, 2])
def test_a_stream_that_outlives_the_drain_ends_with_its_error_event(tmp_path, interrupts):
    """Asked twice it ends at once, and tells its clients all the same."""
    answers = []
    with up(tmp_path, manifest(fake={"tokens": 400, "token_s": 0.1})) as running:
        streams = [
            threading.Thread(target=lambda: answers.append(running.ask(stream=True))) for _ in range(4)
        ]
        for stream in streams:
            stream.start()
        running.until(lambda: running.state()["tokensPerSecond"] > 0 and running.state()["running"] == 4)
        for _ in range(interrupts):
            running.process.send_signal(signal.SIGINT)
            running.until(lambda: "Ctrl-C again" in running.log.read_text())
        for stream in streams:
            stream.join(60)
        assert running.process.wait(60) == 0
    assert [status for status, _ in answers] == [200] * 4
    assert all('"code": "gateway_stopping"' in body for _, body in answers)
