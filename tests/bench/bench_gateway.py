"""Cost of the gateway: CPU per streamed token, and time added to the first one.

Processes on loopback: a paced pod that streams tokens at a fixed rate, the gateway, a bare TCP splice (what
moving the bytes costs with no gateway's work at all), and a client that takes each way in turn. Prints one
table and writes one JSON record to ``tests/bench/records/``. A benchmark, not a test: it asserts no time.

    python tests/bench/bench_gateway.py [--streams 128] [--rate 50] [--seconds 6] [--runs 1]
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import httptools
import uvloop

from wisp_runtime.bench.record import shown_command

RECORDS = Path(__file__).parent / "records"
TOKEN = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1790000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
KEY = "sk-bench"  # its limits, the access log and request ids are all on
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class PacedPod(asyncio.Protocol):
    """A pod: ``max_tokens`` tokens at ``rate`` a second, the first at once; ``/readyz`` is 200."""

    rate = 50.0

    def connection_made(self, transport):
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.loop = asyncio.get_running_loop()

    def data_received(self, data):
        self.parser.feed_data(data)

    def on_message_begin(self):
        self.body = b""

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        self.left = json.loads(self.body)["max_tokens"]
        self.due = self.loop.time()
        self.transport.write(HEAD)
        self.say()

    def say(self):
        if self.transport.is_closing():
            return
        self.transport.write(b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN))
        self.left -= 1
        if self.left:
            self.due += 1 / self.rate
            self.loop.call_at(self.due, self.say)
        else:
            self.transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


class Splice(asyncio.Protocol):
    """The least a proxy can do: two connections, bytes from each to the other."""

    pod_port = 0

    def __init__(self, peer: Splice | None = None) -> None:
        self.peer, self.early = peer, []

    def connection_made(self, transport):
        self.transport = transport
        if self.peer is None:
            loop = asyncio.get_running_loop()
            connecting = loop.create_connection(lambda: Splice(self), "127.0.0.1", self.pod_port)
            self.task = loop.create_task(connecting)
        else:
            self.peer.peer = self
            transport.writelines(self.peer.early)

    def data_received(self, data):
        if self.peer is None:
            self.early.append(data)
        else:
            self.peer.transport.write(data)

    def connection_lost(self, exc):
        if self.peer is not None:
            self.peer.transport.close()


async def splice_main(pod_port: int) -> None:
    Splice.pod_port = pod_port
    server = await asyncio.get_running_loop().create_server(Splice, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def pod_main(rate: float) -> None:
    PacedPod.rate = rate
    server = await asyncio.get_running_loop().create_server(PacedPod, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Stream(asyncio.Protocol):
    """A client of one stream; it counts and keeps no text."""

    def __init__(self, request: bytes, done: asyncio.Future) -> None:
        self.request, self.done = request, done
        self.first_s, self.tokens, self.tail = None, 0, b""

    def connection_made(self, transport):
        self.transport = transport
        self.start_s = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data):
        tokens = data.count(b"data: {")
        if tokens and self.first_s is None:
            self.first_s = time.perf_counter() - self.start_s
        self.tokens += tokens
        self.tail = (self.tail + data)[-5:]
        if self.tail == b"0\r\n\r\n":
            self.transport.close()
            self.done.set_result(None)

    def connection_lost(self, exc):
        if not self.done.done():
            self.done.set_exception(ConnectionError("the stream broke"))


async def client_main(port: int, streams: int, tokens: int) -> None:
    """Open the streams over half a second, run them to their end, print what was seen as JSON."""
    loop = asyncio.get_running_loop()
    body = json.dumps(
        {
            "model": "bench",
            "stream": True,
            "max_tokens": tokens,
            "messages": [{"role": "user", "content": "hello"}],
        }
    ).encode()
    head = ["POST /v1/chat/completions HTTP/1.1", "host: bench", f"authorization: Bearer {KEY}"]
    lines = [*head, f"content-length: {len(body)}", "", ""]
    request = "\r\n".join(lines).encode() + body
    protocols = []
    for _ in range(streams):
        done = loop.create_future()
        _, protocol = await loop.create_connection(lambda done=done: Stream(request, done), "127.0.0.1", port)
        protocols.append(protocol)
        await asyncio.sleep(0.5 / streams)
    await asyncio.gather(*(protocol.done for protocol in protocols))
    firsts = sorted(protocol.first_s for protocol in protocols)
    print(json.dumps({"tokens": sum(protocol.tokens for protocol in protocols), "first_s": firsts}))


def cpu_s(pid: int) -> float:
    """Time a process has had on a CPU so far, in seconds (the scheduler's count, main thread)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def spawn_self(*arguments: object) -> subprocess.Popen:
    command = [sys.executable, __file__, "--role", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def spawn_gateway(folder: Path, pod_port: int, streams: int) -> tuple[subprocess.Popen, int]:
    """Start ``wisp-gateway`` in front of the pod and return it with its port."""
    directory = folder / "directory.json"
    endpoint = {"id": "paced", "address": f"127.0.0.1:{pod_port}", "ready": True, "draining": False}
    model = {"namespace": "bench", "name": "bench", "state": "Ready", "targetConcurrency": streams}
    directory.write_text(json.dumps({"models": [{**model, "endpoints": [endpoint]}]}))
    keys = folder / "keys"
    keys.write_text(f"bench:{KEY} rpm=1000000 tpm=1000000000 concurrent=100000 body=1MiB\n")
    command = [sys.executable, "-m", "wisp_gateway", "--port", "0", "--directory", str(directory)]
    command += [
        "--api-keys",
        str(keys),
        "--limits-state",
        str(folder / "limits.json"),
    ]
    log = folder / "gateway.log"
    gateway = subprocess.Popen(command, stderr=log.open("w"))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and gateway.poll() is None:
        line = next((line for line in log.read_text().splitlines() if "listening on" in line), None)
        if line is not None:
            time.sleep(0.5)  # the directory is read within 100 ms
            return gateway, int(line.rpartition(":")[2])
        time.sleep(0.05)
    raise SystemExit(f"the gateway did not start: {log.read_text()}")


def measure(port: int, streams: int, tokens: int, watched_pid: int) -> dict:
    """Run one client against ``port``; add the CPU that the watched process used meanwhile."""
    before = cpu_s(watched_pid)
    client = spawn_self("client", port, streams, tokens)
    out, _ = client.communicate(timeout=60)
    seen = json.loads(out)
    return {**seen, "cpu_s": cpu_s(watched_pid) - before}


def percentile_ms(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1000


def rows_of(short: dict[str, dict], seen: dict[str, dict], streams: int, rate: float) -> list[dict]:
    """One row a metric, as in the records of every benchmark.

    CPU per token counts everything, requests included; two lengths of stream tell the two apart.
    """
    load = {"streams": streams, "rate": rate}
    rows = []
    for path in ("gateway", "splice"):
        few, many = short[path], seen[path]
        token_s = (many["cpu_s"] - few["cpu_s"]) / (many["tokens"] - few["tokens"])
        request_s = (few["cpu_s"] - token_s * few["tokens"]) / streams
        all_s = many["cpu_s"] / many["tokens"]
        rows += [
            {"metric": "cpu_us_per_token", "path": path, **load, "value": all_s * 1e6},
            {"metric": "cpu_us_per_further_token", "path": path, **load, "value": token_s * 1e6},
            {"metric": "cpu_us_per_request", "path": path, **load, "value": request_s * 1e6},
        ]
    rows.append({"metric": "tokens", "path": "gateway", **load, "value": seen["gateway"]["tokens"]})
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        values = {path: percentile_ms(what["first_s"], share) for path, what in seen.items()}
        rows += [
            {"metric": f"first_token_{name}_ms", "path": path, **load, "value": value}
            for path, value in values.items()
        ]
        added = values["gateway"] - values["direct"]
        rows.append({"metric": f"first_token_added_{name}_ms", "path": "gateway", **load, "value": added})
    return rows


def machine() -> str:
    model = next(
        (line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ":"
    )
    cpu = model.partition(":")[2].strip()
    return f"{cpu}, {os.cpu_count()} CPUs, Linux {platform.release()}, load {os.getloadavg()[0]:.1f} before"


def write_record(rows: list[dict], where: str, path: Path, *, name: str, command: str) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    record = {
        "name": name,
        "commit": commit.stdout.strip(),
        "machine": where,
        "python": platform.python_version(),
        "command": command,
        "rows": rows,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"record: {path}", file=sys.stderr)


def run(streams: int, rate: float, seconds: float) -> list[dict]:
    """Measure every way once to warm up, then with streams of a second, then with long ones."""
    pod = spawn_self("pod", rate)
    pod_port = int(pod.stdout.readline())
    splice = spawn_self("splice", pod_port)
    splice_port = int(splice.stdout.readline())
    with tempfile.TemporaryDirectory() as folder:
        gateway, port = spawn_gateway(Path(folder), pod_port, streams)
        ways = {"direct": (pod_port, pod), "splice": (splice_port, splice), "gateway": (port, gateway)}
        try:
            _, short, seen = [
                {path: measure(to, streams, tokens, watched.pid) for path, (to, watched) in ways.items()}
                for tokens in (int(rate), int(rate), int(rate * seconds))
            ]
        finally:
            for process in (gateway, splice, pod):
                process.send_signal(signal.SIGTERM)
                process.wait(10)
    return rows_of(short, seen, streams, rate)


def medians(runs: list[list[dict]]) -> list[dict]:
    """Return the rows with the median of all runs, and beside it the least and the most of several."""
    rows = []
    for same in zip(*runs, strict=True):
        values = [row["value"] for row in same]
        spread = {"least": min(values), "most": max(values)} if len(values) > 1 else {}
        rows.append({**same[0], "value": statistics.median(values), **spread})
    return rows


def print_table(rows: list[dict]) -> None:
    for row in rows:
        name = f"{row['metric']} {row.get('path', '')}".strip()
        print(f"{name:36} {row['value']:>12,.2f}")


@click.command()
@click.option("--streams", default=128, show_default=True, help="Streams at once.")
@click.option("--rate", default=50.0, show_default=True, help="Tokens a second on each.")
@click.option("--seconds", default=6.0, show_default=True, help="Length of each stream.")
@click.option("--runs", default=1, show_default=True, help="Runs; the record has medians and ranges.")
@click.option(
    "--record", type=click.Path(path_type=Path), default=RECORDS / "gateway.json", show_default=True
)
@click.option("--role", nargs=1, hidden=True)
@click.argument("rest", nargs=-1)
def main(
    streams: int,
    rate: float,
    seconds: float,
    runs: int,
    record: Path,
    role: str | None,
    rest: tuple[str, ...],
) -> None:
    """Measure the gateway's CPU per streamed token and what it adds to the first token."""
    if role == "pod":
        uvloop.run(pod_main(float(rest[0])))
    elif role == "splice":
        uvloop.run(splice_main(int(rest[0])))
    elif role == "client":
        uvloop.run(client_main(*map(int, rest)))
    else:
        where = machine()
        rows = medians([run(streams, rate, seconds) for _ in range(runs)])
        print_table(rows)
        command = shown_command(["python", "tests/bench/bench_gateway.py", *sys.argv[1:]])
        write_record(rows, where, record, name="gateway", command=command)


if __name__ == "__main__":
    main()
