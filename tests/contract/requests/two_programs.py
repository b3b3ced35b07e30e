"""A gateway and a runtime, a process each; their logs, and an HTTP client of the gateway."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

HERE = Path(__file__).parent
PATIENCE_S = 60
ADDRESS = re.compile(r"listening on http://([0-9.:]+)")


def until(answer):
    """Return what ``answer`` does as soon as it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := answer()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return value


@contextmanager
def running(log, command, environment):
    """Run a program that logs to ``log``; yield the address that it listens on."""
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env=os.environ | environment)
    try:
        yield until(lambda: process.poll() is not None or ADDRESS.search(log.read_text()))[1]
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@dataclass
class Pair:
    """A gateway in front of a runtime."""

    client: httpx.Client
    runtime: str
    logs: dict[str, Path]

    def records(self, program, **wanted):
        """Records of a program's log that have these fields."""
        lines = [json.loads(line) for line in self.logs[program].read_text().splitlines() if line[:1] == "{"]
        return [line for line in lines if wanted.items() <= line.items()]


@contextmanager
def pair(folder, **environment):
    """Run both programs, with logs of JSON lines."""
    logs = {name: folder / f"{name}.log" for name in ("gateway", "runtime")}
    runtime = [sys.executable, str(HERE / "scripted_runtime.py"), str(folder / "tiny"), "--host", "127.0.0.1"]
    with running(logs["runtime"], [*runtime, "--port", "0", "--log-format", "json"], environment) as address:
        until(lambda: httpx.get(f"http://{address}/readyz").status_code == 200)
        endpoint = {"id": "tiny-1", "address": address, "ready": True, "draining": False}
        model = {"namespace": "team", "name": "tiny", "servedName": "tiny", "created": 1, "state": "Ready"}
        directory = folder / "directory.json"
        directory.write_text(json.dumps({"models": [model | {"endpoints": [endpoint]}]}))
        gateway = [sys.executable, "-m", "wisp_gateway", "--directory", str(directory), "--port", "0"]
        with (
            running(logs["gateway"], [*gateway, "--log-format", "json"], environment) as entry,
            httpx.Client(base_url=f"http://{entry}", timeout=PATIENCE_S) as client,
        ):
            until(lambda: client.get("/readyz").status_code == 200)
            yield Pair(client, address, logs)
