"""Servers that the clients ask: a scripted model, and SmolLM2 on the CPU.

The clients live in an environment of their own (run.sh); the servers run with ``SERVER_PYTHON``. SmolLM2's
words depend on the CPU that computes them, greedy ones too: no test may rely on them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
import pytest

HERE = Path(__file__).parent
PYTHON = os.environ.get("SERVER_PYTHON", str(HERE.parents[1] / ".venv/bin/python"))
TOKEN = "sk-unused"
START_S = 300.0
HELLO = "Hello, wörld!"
"""Answer of the scripted model to a message that names none."""
BOUNDED = 1000
"""``max_tokens`` beyond any answer to a bounded schema, with all the spaces that its grammar allows."""


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

    def may_say(self, text: str) -> bool:
        """Return whether ``text`` may answer a greeting."""
        return text == HELLO if self.is_scripted else bool(text)

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"


@contextmanager
def _process(*command: str, stderr: IO[str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a process until the block ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
    with subprocess.Popen(command, text=True, **pipes) as process:
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
    address = ["--host", "127.0.0.1", "--port", "0", "--served-name", "smollm2"]
    log = tmp_path_factory.mktemp("smollm2") / "log"
    command = [program, "serve", example.stdout.strip(), "--device", "cpu", *address]
    with log.open("w") as stderr, _process(*command, stderr=stderr) as process:
        yield Served(_url_once_ready(process, log), "smollm2", is_scripted=False)


@pytest.fixture(scope="session", params=["scripted", "smollm2"])
def model(request: pytest.FixtureRequest) -> Served:
    """Each of the models: what a client does must work with both."""
    return request.getfixturevalue(request.param)


def _url_once_ready(process: subprocess.Popen[str], log: Path) -> str:
    """Return the address that the server's log names, as soon as it serves."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        if address := re.search(r"listening on (http://\S+)\n", log.read_text()):
            with suppress(httpx.TransportError):
                if httpx.get(f"{address[1]}/readyz", timeout=START_S).status_code == 200:
                    return address[1]
        time.sleep(0.2)
    raise TimeoutError(f"the server was not ready within {START_S:g} s: {log.read_text()}")
