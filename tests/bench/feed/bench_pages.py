"""Cost of open pages: the gateway's CPU with and without 20 pages that follow it, idle and under load.

The gateway is a process of its own over eight pods of this one, which stream tokens at a fixed rate and
report their ``/state``; pages read ``/state/stream``. Each case runs without pages and with them, in turn.
Writes a record; asserts no time.

    python tests/bench/feed/bench_pages.py [--pages 20] [--seconds 20]
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

import bench_gateway as gateway_bench

RECORD = gateway_bench.RECORDS / "feed.json"
STATE = {
    "status": "ready",
    "phases": [{"name": name, "seconds": 0.5, "state": "done"} for name in ("import", "weights", "kernels")],
    "ledger": {"weightsBytes": 1 << 30, "kvCacheBytes": 1 << 29, "availableBytes": 1 << 32},
    "load": {"kvBlocksUsed": 100, "kvBlocksTotal": 1000, "promptTokensTotal": 1000, "cachedTokensTotal": 300},
    "defaults": {"temperature": 1.0, "top_p": 1.0},
}


class Pod(gateway_bench.PacedPod):
    """A paced pod that also reports its state."""

    def on_url(self, url):
        self.url = url

    def on_message_complete(self):
        if self.url != b"/state":
            super().on_message_complete()
            return
        body = json.dumps(STATE).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)


async def start_gateway(folder: Path, models: int, pod_port: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start ``wisp-gateway`` over models of one pod each."""
    directory, log = folder / "directory.json", folder / "gateway.log"
    entries = [
        {
            "namespace": "bench",
            "name": f"bench{number}",
            "state": "Ready",
            "endpoints": [
                {"id": f"p{number}", "address": f"127.0.0.1:{pod_port}", "ready": True, "draining": False}
            ],
        }
        for number in range(models)
    ]
    directory.write_text(json.dumps({"models": entries}))
    command = [sys.executable, "-m", "wisp_gateway", "--port", "0", "--directory", str(directory)]
    process = subprocess.Popen(command, stderr=log.open("w"))
    while "listening on" not in log.read_text():
        if process.poll() is not None:
            raise SystemExit(f"the gateway did not start: {log.read_text()}")
        await asyncio.sleep(0.05)
    line = next(line for line in log.read_text().splitlines() if "listening on" in line)
    return process, int(line.rpartition(":")[2])


async def follow(port: int, seen: list[int]) -> None:
    """Read the stream of one page, and count its bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /state/stream HTTP/1.1\r\nhost: bench\r\n\r\n")
    try:
        while chunk := await reader.read(1 << 16):
            seen[0] += len(chunk)
    finally:
        writer.close()


async def stream(port: int, model: str, tokens: int) -> None:
    """Ask for one stream and read it."""
    body = json.dumps({"model": model, "stream": True, "max_tokens": tokens, "messages": []}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    try:
        while b"0\r\n\r\n" not in await reader.read(1 << 16):
            pass
    finally:
        writer.close()


async def load(port: int, models: int, streams: int, rate: float) -> None:
    """Keep ``streams`` streams of two seconds running, spread over the models."""

    async def again(number: int) -> None:
        while True:
            await stream(port, f"bench{number % models}", int(2 * rate))

    await asyncio.gather(*(again(number) for number in range(streams)))


async def measure(
    port: int, pid: int, pages: int, streams: int, models: int, seconds: float
) -> dict[str, float]:
    """Return the share of a core that the gateway takes, and the bytes a page gets a second."""
    seen = [0]
    tasks = [asyncio.create_task(follow(port, seen)) for _ in range(pages)]
    if streams:
        tasks.append(asyncio.create_task(load(port, models, streams, 50.0)))
    await asyncio.sleep(3.0)
    before_s, before, began_s = gateway_bench.cpu_s(pid), seen[0], time.monotonic()
    await asyncio.sleep(seconds)
    passed_s = time.monotonic() - began_s
    share = (gateway_bench.cpu_s(pid) - before_s) / passed_s
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.5)
    return {"share": share, "page_bytes_s": (seen[0] - before) / passed_s / max(1, pages)}


async def run(pages: int, models: int, seconds: float) -> list[dict[str, object]]:
    """Measure each case without pages and with them."""
    gateway_bench.PacedPod.rate = 50.0
    server = await asyncio.get_running_loop().create_server(Pod, "127.0.0.1", 0)
    pod_port = server.sockets[0].getsockname()[1]
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        process, port = await start_gateway(Path(folder), models, pod_port)
        try:
            for case, streams in (("idle", 0), ("8 streams", 8), ("64 streams", 64)):
                without, followed = [
                    await measure(port, process.pid, count, streams, models, seconds) for count in (0, pages)
                ]
                row = {"case": case, "models": models, "streams": streams, "pages": pages}
                shares = {
                    "cpu_percent_without_pages": 100 * without["share"],
                    "cpu_percent_with_pages": 100 * followed["share"],
                    "cpu_percent_of_pages": 100 * (followed["share"] - without["share"]),
                    "bytes_a_second_a_page": followed["page_bytes_s"],
                }
                rows += [{"metric": metric, **row, "value": value} for metric, value in shares.items()]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    return rows


@click.command()
@click.option("--pages", default=20, show_default=True)
@click.option("--models", default=8, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Length of each measurement.")
@click.option("--record", type=click.Path(path_type=Path), default=RECORD, show_default=True)
def main(pages: int, models: int, seconds: float, record: Path) -> None:
    """Measure what pages that follow the gateway cost it."""
    where = gateway_bench.machine()
    rows = uvloop.run(run(pages, models, seconds))
    for row in rows:
        print(f"{row['case']:12} {row['metric']:28} {row['value']:>10.2f}")
    command = gateway_bench.shown_command(["python", "tests/bench/feed/bench_pages.py", *sys.argv[1:]])
    gateway_bench.write_record(rows, where, record, name="feed", command=command)


if __name__ == "__main__":
    main()
