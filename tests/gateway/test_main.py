"""``wisp-gateway`` as a process: flags, ``--directory`` file, exit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest


class Process:
    """The command with ``--port 0`` and a directory file in ``tmp_path``."""

    def __init__(self, tmp_path, *flags, **environment):
        self.directory = tmp_path / "directory.json"
        self.log = tmp_path / "log"
        command = [sys.executable, "-m", "wisp_gateway", "--directory", str(self.directory), *flags]
        self.process = subprocess.Popen(
            command, stderr=self.log.open("w"), env={**os.environ, "WISP_GATEWAY_PORT": "0", **environment}
        )

    @property
    def url(self):
        deadline = time.monotonic() + 60
        while "listening on " not in self.log.read_text():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        return self.log.read_text().partition("listening on ")[2].split()[0].rstrip('",}')

    def write(self, text):
        draft = self.directory.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self.directory)

    def models(self):
        return [model["id"] for model in httpx.get(f"{self.url}/v1/models").json()["data"]]

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def start(tmp_path):
    started = []

    def starting(*flags, **environment):
        started.append(Process(tmp_path, *flags, **environment))
        return started[-1]

    yield starting
    for process in started:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait()


def until(claim, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def directory(*names):
    return json.dumps({"models": [{"namespace": "d", "name": name, "state": "Asleep"} for name in names]})


def test_the_directory_file_may_come_late_change_break_and_go(start):
    gateway = start()
    assert gateway.models() == []
    gateway.write(directory("a"))
    until(lambda: gateway.models() == ["a"])
    gateway.write('{"models": [{"name": "b"')
    until(lambda: "not JSON" in gateway.log.read_text())
    time.sleep(0.5)
    assert gateway.models() == ["a"]
    gateway.directory.unlink()
    time.sleep(0.3)
    assert gateway.models() == ["a"]
    gateway.write(directory("b", "c"))
    until(lambda: gateway.models() == ["b", "c"])
    warnings = [line for line in gateway.log.read_text().splitlines() if "not JSON" in line]
    assert len(warnings) == 1  # read five times, logged once
    assert gateway.end() == 0


def test_a_port_in_use_is_one_sentence_and_exit_1(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gateway = start("--port", str(taken.getsockname()[1]))
        assert gateway.process.wait(60) == 1
    lines = gateway.log.read_text().splitlines()
    assert len(lines) == 1
    assert "address already in use" in lines[0]
    assert "--port" in lines[0]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--port", "70000"], 2, "--port"),
        (["--unknown"], 2, "--unknown"),
        (["--api-keys", "/nonexistent"], 1, "/nonexistent"),
        (["--demand-url", "ftp://x"], 1, "--demand-url"),
        (["--host", "203.0.113.1"], 1, "203.0.113.1"),
    ],
)
def test_invalid_settings_are_named_and_end_the_process(start, flags, code, message):
    gateway = start(*flags)
    assert gateway.process.wait(60) == code
    assert message in gateway.log.read_text()
    assert "Traceback" not in gateway.log.read_text()


def test_flags_come_from_the_environment_but_not_from_kubernetes_service_links(start):
    gateway = start(WISP_GATEWAY_LOG_FORMAT="json", WISP_GATEWAY_NAME="gw-9")
    assert httpx.get(f"{gateway.url}/state").json()["gateway"] == "gw-9"
    assert json.loads(gateway.log.read_text().splitlines()[0])["level"] == "info"
    linked = start("--help", WISP_GATEWAY_PORT="tcp://10.0.0.1:80")
    assert linked.process.wait(60) == 0


def test_sigterm_finishes_running_requests_and_refuses_those_that_wait_too_long(start):
    gateway = start("--drain-timeout-s", "0.6", "--shutdown-delay-s", "0.5")
    gateway.write(directory("a"))
    until(lambda: gateway.models() == ["a"])
    with httpx.Client(timeout=60) as client:
        held = client.build_request("POST", f"{gateway.url}/v1/completions", json={"model": "a"})
        url = gateway.url
        import concurrent.futures

        with concurrent.futures.ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.send, held)
            until(lambda: httpx.get(f"{url}/state").json()["models"][0]["waiting"] == 1)
            gateway.process.send_signal(signal.SIGTERM)
            until(lambda: httpx.get(f"{url}/readyz").status_code == 503)
            answer = waiting.result(60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gateway_stopping")
    assert gateway.process.wait(60) == 0
