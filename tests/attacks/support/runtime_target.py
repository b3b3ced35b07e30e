"""The runtime as its own process on the CPU, with a small model and neighbours that ask it for a little."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from neighbour import Target, Watch
from processes import Process, status_of, until
from wire import CHAT_PATH, Answer, post

from wisp_operator.local.machine.ports import free_port

MEMORY_LIMIT_MIB = 4096
"""The chart's limit: runtime.memory."""
NAME = "mine"
COMPLETIONS_PATH = "/v1/completions"
MESSAGES = {"messages": [{"role": "user", "content": "hello"}]}
STEADY_POD = Path(__file__).with_name("steady_pod.py")
SERVE = "from wisp_runtime.cli.main import main; main()"


class RuntimeProcess(Process):
    """``wisp-runtime serve`` on the CPU, one thread."""

    def __init__(self, folder: Path, model: Path, *flags: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-c", SERVE, "serve", str(model), "--served-name", NAME, "--device", "cpu"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--threads", "1"]
        command += ["--termination-log", str(folder / "termination.log"), *flags]
        super().__init__("runtime", command, folder / "runtime.log")

    def until_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until it serves."""

        def is_ready() -> bool:
            assert self.is_alive, f"the runtime ended: {self.output()}"
            return status_of(f"http://127.0.0.1:{self.port}/readyz") == 200

        until(is_ready, timeout_s)


class RuntimeTarget(Target):
    """A runtime whose neighbours stream 16 tokens three times a second, and ask for one greedy answer."""

    def __init__(self, folder: Path, model: Path, *flags: str) -> None:
        control_port = free_port()
        command = [sys.executable, str(STEADY_POD), str(control_port)]
        self.control = Process("control", command, folder / "control.log")
        self.runtime = RuntimeProcess(folder, model, "--kv-cache-memory", "128MiB", *flags)
        self.runtime.until_ready()
        until(lambda: status_of(f"http://127.0.0.1:{control_port}/readyz") == 200)
        watch = self._neighbours(self.runtime.port, control_port)
        super().__init__([self.runtime], self.runtime.port, watch, MEMORY_LIMIT_MIB)

    def ask(self, path: str = CHAT_PATH, timeout_s: float = 60.0, **fields: Any) -> Answer:
        """Send a request; a chat unless ``path`` says otherwise."""
        default = MESSAGES if path == CHAT_PATH else {}
        body = json.dumps({"model": NAME, **default, **fields}).encode()
        with self.connect(timeout_s=timeout_s) as client:
            return client.send(post(path, body)).answer()

    def hold(self, seconds: float, path: str, **fields: Any) -> bytes:
        """Send a streamed request and read it for this long; returns the first bytes, then leaves."""
        body = json.dumps({"model": NAME, **fields}).encode()
        with self.connect(timeout_s=0.5) as client:
            client.send(post(path, body))
            deadline, first = time.monotonic() + seconds, b""
            while time.monotonic() < deadline:
                with suppress(TimeoutError):
                    data = client.socket.recv(1 << 20)
                    if not data:
                        break
                    first = first or data
        return first

    def load(self) -> dict[str, Any]:
        """Return ``load`` of the runtime's ``/state``."""
        with urllib.request.urlopen(f"{self.url}/state", timeout=10) as answer:
            return json.loads(answer.read())["load"]

    def close(self) -> None:
        """End everything."""
        super().close()
        self.control.stop()

    @staticmethod
    def _neighbours(port: int, control_port: int) -> Watch:
        url = f"http://127.0.0.1:{port}"
        body = {"model": NAME, "prompt": "A neighbour", "max_tokens": 16, "ignore_eos": True}
        steady = {"model": NAME, "stream": True, "max_tokens": 1500}
        control_url = f"http://127.0.0.1:{control_port}{CHAT_PATH}"
        greedy = {**body, "temperature": 0, "max_tokens": 4}
        return Watch(
            streams=[
                {
                    "name": "stream",
                    "url": url + COMPLETIONS_PATH,
                    "body": {**body, "stream": True},
                    "pause_s": 0.2,
                },
                {"name": "control", "url": control_url, "body": steady},
            ],
            answers=[{"name": "greedy", "url": url + COMPLETIONS_PATH, "body": greedy}],
            probes=[f"{url}/readyz", f"{url}/livez"],
        )
