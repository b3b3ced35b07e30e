"""Servers that the clients ask: a scripted model, and SmolLM2 on the CPU.

The clients live in an environment of their own (run.sh); the servers run with ``SERVER_PYTHON``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent
PYTHON = os.environ.get("SERVER_PYTHON", str(HERE.parents[1] / ".venv/bin/python"))
TOKEN = "sk-unused"
START_S = 120.0


@dataclass(frozen=True)
class Served:
    """A served model.

    Args:
        url: address of the server, without ``/v1``.
        name: name of the model.
        is_scripted: whether its answers are known.
    """

    url: str
    name: str
    is_scripted: bool

    @property
    def max_tokens(self) -> int:
        """Tokens of an answer: the scripted model has one a byte, the other's answers shall be short."""
        return 1000 if self.is_scripted else 64

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"


@contextmanager
def _process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process until the block ends."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="session")
def families() -> Iterator[dict[str, Served]]:
    """The scripted model, once for each family of tool markups."""
    with _process(PYTHON, str(HERE / "scripted_server.py")) as process:
        urls = json.loads(process.stdout.readline())
        yield {family: Served(url, "tiny", is_scripted=True) for family, url in urls.items()}


@pytest.fixture(scope="session")
def scripted(families: dict[str, Served]) -> Served:
    return families["hermes"]


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    program = str(Path(PYTHON).with_name("wisp-runtime"))
    example = subprocess.run([program, "example"], check=True, stdout=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{(port := _free_port())}"
    address = ["--host", "127.0.0.1", "--port", str(port), "--served-name", "smollm2"]
    with _process(program, "serve", example.stdout.strip(), "--device", "cpu", *address):
        _wait_until_ready(url)
        yield Served(url, "smollm2", is_scripted=False)


@pytest.fixture(scope="session", params=["scripted", "smollm2"])
def model(request: pytest.FixtureRequest) -> Served:
    """Each of the models: what a client does must work with both."""
    return request.getfixturevalue(request.param)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"the server was not ready within {START_S:g} s")
