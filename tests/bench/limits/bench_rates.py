"""Rates that two limited keys get from a gateway, by the clock: one offers 10 requests a second, one 100.

A process of its own with a fake pod behind it, and clients without retries before it. It starts with buckets
that an earlier process has emptied, so that what is counted is the rate alone.

    python tests/bench/limits/bench_rates.py [--seconds 120] [--record FILE]
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import click

from wisp_runtime.bench.record import shown_command

RECORD = Path(__file__).parents[1] / "records" / "limits-rates.json"
MODEL = {"namespace": "bench", "name": "m", "state": "Ready", "targetConcurrency": 64}
ANSWER = b'{"id": "c", "object": "text_completion", "choices": []}'
BODY = {"model": "m", "prompt": "hello", "max_tokens": 1}


@dataclass
class Load:
    """Requests of one key.

    Attributes:
        offered: requests a second that it sends.
        rpm: its limit.
        answers: numbers of answers by status.
        seconds: time from the first request to the last answer.
    """

    name: str
    offered: float
    rpm: int
    answers: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0


async def pod(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request at once."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(lengths[0].partition(b":")[2]) if lengths else 0)
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(ANSWER), ANSWER)
            )
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        writer.close()


async def spend(client: aiohttp.ClientSession, load: Load) -> None:
    """Spend what has come back since the gateway started."""
    while await _ask(client, load) == 200:
        pass


async def offer(client: aiohttp.ClientSession, load: Load, seconds: float) -> None:
    """Send requests at their times, whether earlier ones are answered or not."""
    begin_s = time.monotonic()
    sent = []
    for index in range(int(seconds * load.offered)):
        await asyncio.sleep(begin_s + index / load.offered - time.monotonic())
        sent.append(asyncio.ensure_future(_ask(client, load)))
    load.answers = Counter(await asyncio.gather(*sent))
    load.seconds = time.monotonic() - begin_s


async def _ask(client: aiohttp.ClientSession, load: Load) -> int:
    async with client.post("/v1/completions", json=BODY, headers=_key(load)) as answer:
        await answer.read()
        return answer.status


def _key(load: Load) -> dict[str, str]:
    return {"authorization": f"Bearer sk-{load.name}"}


async def measure(loads: list[Load], seconds: float) -> None:
    """Run the gateway, spend the buckets, then offer all loads side by side."""
    server = await asyncio.start_server(pod, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        endpoint = {"id": "p", "address": address, "ready": True, "draining": False}
        (folder / "models.json").write_text(json.dumps({"models": [{**MODEL, "endpoints": [endpoint]}]}))
        (folder / "keys").write_text(
            "".join(f"{load.name}:sk-{load.name} rpm={load.rpm}\n" for load in loads)
        )
        empty = {f"{folder / 'keys'}:{load.name}": {"requests": 60.0, "tokens": 0.0} for load in loads}
        state = {"writtenAt": time.time(), "refillSeconds": empty}
        (folder / "limits.json").write_text(json.dumps(state))
        gateway, url = await start(folder)
        try:
            async with aiohttp.ClientSession(url) as client:
                for load in loads:
                    await spend(client, load)
                await asyncio.gather(*(offer(client, load, seconds) for load in loads))
        finally:
            gateway.send_signal(signal.SIGTERM)
            gateway.wait(60)
            server.close()


async def start(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start ``wisp-gateway`` and return it with its URL."""
    files = ["--directory", str(folder / "models.json"), "--api-keys", str(folder / "keys")]
    files += ["--limits-state", str(folder / "limits.json")]
    log = folder / "log"
    process = subprocess.Popen(
        [sys.executable, "-m", "wisp_gateway", "--port", "0", *files], stderr=log.open("w")
    )
    async with asyncio.timeout(60):
        while "listening on " not in log.read_text():
            await asyncio.sleep(0.05)
    url = log.read_text().partition("listening on ")[2].split()[0]
    async with aiohttp.ClientSession(url) as client, asyncio.timeout(60):
        while not (await (await client.get("/state")).json())["models"]:
            await asyncio.sleep(0.05)
    return process, url


def rows(loads: list[Load]) -> list[dict[str, object]]:
    """Return a row a key: its rate, and how far that is from the lower of limit and offer."""
    measured = []
    for load in loads:
        rate = load.answers[200] / load.seconds
        due = min(load.rpm / 60, load.answers.total() / load.seconds)
        measured.append(
            {
                "key": load.name,
                "rpm": load.rpm,
                "offered_per_s": load.answers.total() / load.seconds,
                "granted_per_s": rate,
                "off_percent": 100 * (rate / due - 1),
                "answers": {str(status): count for status, count in sorted(load.answers.items())},
            }
        )
    return measured


@click.command()
@click.option("--seconds", default=120.0, show_default=True)
@click.option("--record", type=click.Path(path_type=Path), default=RECORD, show_default=True)
def main(seconds: float, record: Path) -> None:
    """Measure the rates of two keys, and write them."""
    loads = [Load("fast", 100, 3000), Load("slow", 10, 300)]
    load_before = os.getloadavg()[0]
    asyncio.run(measure(loads, seconds))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    document = {
        "name": "limits-rates",
        "commit": commit.stdout.strip(),
        "machine": f"{os.cpu_count()} CPUs, Linux {platform.release()}, load {load_before:.1f} before",
        "python": platform.python_version(),
        "command": shown_command(["python", "tests/bench/limits/bench_rates.py", *sys.argv[1:]]),
        "seconds": seconds,
        "rows": rows(loads),
    }
    record.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
