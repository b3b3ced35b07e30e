"""The server that is tried, as processes of its own: the real one, over the engine of ``markov_engine``.

Run as a module: ``python target.py MODEL PORT``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests/runtime/support"))
START_S = 120.0
TEMPLATE = (
    "{% if tools %}<|start|>system\n{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for message in messages %}<|start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}"
    "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@dataclass(frozen=True)
class Footprint:
    """What the server's processes hold: resident kibibytes, threads and open files, summed over them."""

    rss_kib: int
    threads: int
    files: int


@dataclass
class Target:
    """A server that runs: its process, its port, the file with its log."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def get(self, path: str, timeout_s: float = 60.0) -> str:
        """Return the body of ``GET path``."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=timeout_s) as response:
            text: str = response.read().decode()
            return text

    def load(self) -> dict[str, int]:
        """Return the engine's counts."""
        counts: dict[str, int] = json.loads(self.get("/state"))["load"]
        return counts

    def family(self) -> list[int]:
        """Return the ids of its processes, its own first."""
        found = [self.process.pid]
        for parent in found:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{parent}/task").iterdir():
                    found += [int(child) for child in (task / "children").read_text().split()]
        return found

    def footprint(self) -> Footprint:
        """Return what its processes hold now."""
        rss = threads = files = 0
        for pid in self.family():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                fields = dict(line.split(":", 1) for line in status.splitlines())
                rss += int(fields["VmRSS"].split()[0])
                threads += int(fields["Threads"])
                files += len(os.listdir(f"/proc/{pid}/fd"))
        return Footprint(rss, threads, files)

    def settled_footprint(self, files: int, timeout_s: float = 60.0) -> Footprint:
        """Return what its processes hold, once their open files are as few as ``files`` or time is up."""
        deadline = time.monotonic() + timeout_s
        while (footprint := self.footprint()).files > files and time.monotonic() < deadline:
            time.sleep(0.1)
        return footprint

    def wait_until_idle(self, timeout_s: float = 60.0) -> dict[str, int]:
        """Wait until no sequence waits or runs and no block is held; return the engine's counts."""
        deadline = time.monotonic() + timeout_s
        while True:
            load = self.load()
            if (
                not (load["waiting"] or load["running"] or load["kvBlocksUsed"])
                or time.monotonic() > deadline
            ):
                return load
            time.sleep(0.05)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Target]:
    """Run the server in ``folder`` on a port of loopback; end it as an operator does."""
    from fake_engine import write_model

    model = write_model(folder / "tiny", TEMPLATE)
    log = folder / "server.log"
    paths = (ROOT / "runtime", ROOT / "operator", ROOT / "tests/runtime/support", HERE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, __file__, str(model)], stderr=file, stdout=file, env=environment
        )
    try:
        target = Target(process, _port(process, log), log)
        _wait_until_ready(target)
        yield target
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        text = log.read_text()
        if "listening on http://" in text:
            return int(text.split("listening on http://", 1)[1].split()[0].rsplit(":", 1)[1])
        time.sleep(0.02)
    raise SystemExit(f"the server did not start:\n{log.read_text()[-4000:]}")


def _wait_until_ready(target: Target) -> None:
    deadline = time.monotonic() + START_S
    while target.process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            target.get("/readyz")
            return
        time.sleep(0.02)
    raise SystemExit(f"the server is not ready:\n{target.log.read_text()[-4000:]}")


def main(model: str) -> int:
    """Serve ``model``; return the exit status."""
    from wisp_runtime.config import ServeConfig
    from wisp_runtime.engine.transport.client import EngineClient
    from wisp_runtime.server import process

    config = ServeConfig(model=model, served_name="tiny", host="127.0.0.1", port=0, drain_timeout_s=1.0)
    return process.run(config, partial(EngineClient.start, entry="markov_engine"))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
