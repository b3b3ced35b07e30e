"""The routing benchmark on real pods: replicas of a small model on the CPU, a gateway, clients."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from workloads import Texts, Workload

START_S = 300
OPERATOR = Path(__file__).parents[3] / "operator"
RUNTIME = Path(__file__).parents[3] / "runtime"


@dataclass
class Measured:
    """Values of one run."""

    first_s: list[float] = field(default_factory=list)
    total_s: float = 0.0
    answer_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    by_pod: list[int] = field(default_factory=list)
    cpu_s: float = 0.0


class Process:
    """A server that writes its address when it listens.

    Args:
        log: file of its output.
    """

    def __init__(self, command: list[str], path: str, log: Path) -> None:
        self._log = log
        with log.open("w") as output:
            environment = os.environ | {"PYTHONPATH": path}
            self.process = subprocess.Popen(command, stderr=output, stdout=output, env=environment)

    def wait(self) -> None:
        """Wait until it is ready."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            listening = re.search(r"listening on (http://\S+)", self._log.read_text())
            try:
                if listening is not None:
                    self.url = listening[1]
                    urllib.request.urlopen(f"{self.url}/readyz", timeout=5).close()
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise SystemExit(f"it did not start: {self._log.read_text()}")

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(60)


class Replica(Process):
    """One ``wisp-runtime serve`` with one thread."""

    def __init__(self, model: Path, folder: Path, number: int, cache: str) -> None:
        self.id = f"replica-{number}"
        program = Path(sys.executable).with_name("wisp-runtime")
        command = [str(program), "serve", str(model), "--served-name", "m", "--device", "cpu"]
        command += ["--threads", "1", "--host", "127.0.0.1", "--port", "0"]
        command += ["--kv-cache-memory", cache, "--max-concurrent", "16"]
        super().__init__(command, f"{OPERATOR}:{RUNTIME}", folder / f"{self.id}.log")

    def load(self) -> dict[str, int]:
        """Return its counts."""
        with urllib.request.urlopen(f"{self.url}/state", timeout=30) as answer:
            return json.load(answer)["load"]

    def cpu_s(self) -> float:
        """Return the CPU time of its processes."""
        ticks = 0
        for pid in (self.process.pid, *children(self.process.pid)):
            values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(values[11]) + int(values[12])
        return ticks / os.sysconf("SC_CLK_TCK")


class GatewayProcess(Process):
    """A gateway before the replicas.

    Args:
        operator: folder of its packages: another revision's for another policy.
    """

    def __init__(self, operator: Path, folder: Path, replicas: list[Replica], routing: str) -> None:
        endpoints = [
            {"id": pod.id, "address": pod.url.removeprefix("http://"), "ready": True, "draining": False}
            for pod in replicas
        ]
        model = {"namespace": "bench", "name": "m", "state": "Ready", "routing": routing}
        model |= {"endpoints": endpoints, "targetConcurrency": 16}
        directory = folder / "directory.json"
        directory.write_text(json.dumps({"models": [model]}))
        command = [sys.executable, "-m", "wisp_gateway", "--port", "0", "--directory", str(directory)]
        super().__init__(command, f"{operator}:{operator.parent / 'runtime'}", folder / "gateway.log")


def run(workload: Workload, url: str, replicas: list[Replica], salt: str) -> Measured:
    """Run a workload; ``salt``: what keeps its prefixes apart from those of other runs."""
    before, cpu_s = [pod.load() for pod in replicas], sum(pod.cpu_s() for pod in replicas)
    measured = asyncio.run(_run(workload, url, salt))
    after = [pod.load() for pod in replicas]
    measured.cpu_s = sum(pod.cpu_s() for pod in replicas) - cpu_s

    def added(name: str) -> list[int]:
        return [now[name] - then[name] for now, then in zip(after, before, strict=True)]

    measured.cached_tokens = sum(added("cachedTokensTotal"))
    measured.computed_tokens = sum(added("promptTokensTotal"))
    measured.by_pod = added("generatedTokensTotal")
    return measured


async def _run(workload: Workload, url: str, salt: str) -> Measured:
    measured, numbers = Measured(), iter(range(workload.conversations))
    began_s = time.monotonic()
    async with httpx.AsyncClient(base_url=url, timeout=1800, trust_env=False) as client:
        await asyncio.gather(
            *(_converse(workload, client, salt, numbers, measured) for _ in range(workload.clients))
        )
    measured.total_s = time.monotonic() - began_s
    return measured


async def _converse(workload, client, salt, numbers, measured) -> None:
    """Have conversations until there are no more."""
    for number in numbers:
        texts = Texts(workload, number)
        for turn in range(workload.turns):
            answer = await _ask(workload, client, salt, f"{salt} {number}", texts, measured)
            if turn < workload.turns - 1:
                await asyncio.sleep(texts.add_answer(answer))


async def _ask(workload, client, salt, session, texts, measured) -> str:
    body = {"model": "m", "messages": texts.messages, "max_tokens": workload.answer_tokens, "stream": True}
    body |= {"ignore_eos": True, "temperature": 0, "cache_salt": salt}
    headers = {"x-session-id": session} if workload.has_session else {}
    began_s, said = time.monotonic(), []
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    if choice["delta"].get("content"):
                        if not said:
                            measured.first_s.append(time.monotonic() - began_s)
                        said.append(choice["delta"]["content"])
    measured.answer_tokens += workload.answer_tokens
    return "".join(said)


def children(pid: int) -> list[int]:
    """Return the processes below ``pid``."""
    try:
        direct = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in map(int, direct) for found in (child, *children(child))]
