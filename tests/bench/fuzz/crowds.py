"""Clients that read slowly, stay idle or leave: what they cost the server, and other clients.

python tests/bench/fuzz/crowds.py --record tests/bench/records/fuzz-crowds.json
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bodies import HELLO
from connection import Connection
from mutations import LEAVES, Case, request_of
from tally import write
from target import Target, served

ASK = {"role": "user", "content": "hi"}
LONG_TOKENS = 400
CHAT = {"model": "tiny", "messages": [ASK], "max_tokens": LONG_TOKENS, "stream": True}
RESPONSE = {
    "model": "tiny",
    "input": "hi",
    "max_output_tokens": LONG_TOKENS,
    "stream": True,
    "ignore_eos": True,
}
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT | {"ignore_eos": True, "logprobs": True, "top_logprobs": 20},
    "/v1/responses": RESPONSE | {"include": ["message.output_text.logprobs"], "top_logprobs": 20},
    "/v1/messages": CHAT | {"thinking": {"type": "enabled", "budget_tokens": LONG_TOKENS - 1}},
}
LEFT: dict[str, tuple[str, dict[str, Any]]] = {
    **{path: (path, body) for path, body in STREAMS.items()},
    "/v1/chat/completions, no stream": ("/v1/chat/completions", CHAT | {"ignore_eos": True, "stream": False}),
    "/v1/responses, no stream": ("/v1/responses", RESPONSE | {"stream": False}),
    "/v1/responses, background": ("/v1/responses", RESPONSE | {"stream": False, "background": True}),
    "/v1/responses, background stream": ("/v1/responses", RESPONSE | {"background": True}),
    "/v1/messages, no stream": ("/v1/messages", CHAT | {"stream": False}),
    "/v1/completions": ("/v1/completions", {"model": "tiny", "prompt": ["a"] * 8, "stream": True, "n": 2}),
    "/v1/embeddings": ("/v1/embeddings", {"model": "tiny", "input": ["a" * 400] * 40}),
    "/v1/rerank": ("/v1/rerank", {"model": "tiny", "query": "a", "documents": ["b" * 400] * 40}),
    "/v1/messages/count_tokens": ("/v1/messages/count_tokens", {"model": "tiny", "messages": [ASK]}),
}
RECEIVE_BYTES = 4096
ANSWERED_S = 600.0


@asynccontextmanager
async def latencies_ms(port: int) -> AsyncGenerator[list[float], None]:
    """Send a short chat after the other meanwhile; the list gets the time that each took."""
    times = list[float]()

    async def ask() -> None:
        connection = await Connection.open(port)
        while True:
            began_s = time.monotonic()
            answer = await connection.ask(request_of("/v1/chat/completions", HELLO))
            assert answer.status == 200, answer
            times.append(1000 * (time.monotonic() - began_s))
            await asyncio.sleep(0.01)

    asking = asyncio.create_task(ask())
    try:
        yield times
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def latency_ms(port: int, seconds: float) -> tuple[float, float]:
    """Return median and maximum of a short chat's time."""
    async with latencies_ms(port) as times:
        await asyncio.sleep(seconds)
        while not times:
            await asyncio.sleep(0.05)
    return round(median(times), 1), round(max(times), 1)


async def slow_readers(target: Target, count: int, seconds: float) -> dict[str, Any]:
    """Have ``count`` clients read a byte a second of a long stream."""
    before, alone = target.footprint(), await latency_ms(target.port, seconds / 4)
    readers, received = [await _stream(target.port, index) for index in range(count)], 0
    idle = await asyncio.to_thread(target.wait_until_idle, ANSWERED_S)  # answers that wait for their readers
    crowded, peak = asyncio.create_task(latency_ms(target.port, seconds)), target.footprint()
    while not crowded.done():
        await asyncio.sleep(1)
        for reader in readers:
            received += len(reader.recv(1))
        peak = max(peak, target.footprint(), key=lambda footprint: footprint.rss_kib)
    for reader in readers:
        reader.close()
    row = {
        "metric": "slow readers",
        "of": f"{count}, {seconds:g} s",
        "bytes read": received,
        "held KV blocks": idle["kvBlocksUsed"],
        "KiB each": round((peak.rss_kib - before.rss_kib) / count, 1),
        "files after": await _files(target, before.files),
        "files before": before.files,
    }
    return row | _latencies(alone, crowded.result())


async def _stream(port: int, index: int) -> socket.socket:
    """Ask for a long stream on a socket with small buffers; return it without having read anything."""
    path = list(STREAMS)[index % len(STREAMS)]
    request = request_of(path, STREAMS[path])
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    await asyncio.to_thread(reader.connect, ("127.0.0.1", port))
    reader.sendall(request.head + request.body)
    reader.settimeout(60)
    return reader


async def idle_connections(target: Target, count: int, seconds: float) -> dict[str, Any]:
    """Keep ``count`` connections open after an answer each, and do nothing with them."""
    before, alone = target.footprint(), await latency_ms(target.port, seconds / 4)
    connections = [await Connection.open(target.port) for _ in range(count)]
    models = Case("/v1/models", "GET", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", b"")
    for connection in connections:
        assert (await connection.ask(models)).status == 200
    crowded, held = await latency_ms(target.port, seconds), target.footprint()
    for connection in connections:
        connection.leave()
    row = {
        "metric": "idle connections",
        "of": f"{count}, {seconds:g} s",
        "KiB each": round((held.rss_kib - before.rss_kib) / count, 1),
        "files held": held.files,
        "files after": await _files(target, before.files),
        "files before": before.files,
    }
    return row | _latencies(alone, crowded)


async def leavers(target: Target, count: int, names: Collection[str] = LEFT.keys()) -> list[dict[str, Any]]:
    """Have ``count`` clients leave at each stage of each kind of request that ``names`` has."""
    rows, before = list[dict[str, Any]](), target.footprint()
    for name in names:
        path, body = LEFT[name]
        began_s = time.monotonic()
        for stage in LEAVES:
            connections = [await Connection.open(target.port) for _ in range(count)]
            request = request_of(path, body, stage)
            await asyncio.gather(*(connection.ask(request) for connection in connections))
        left_s = time.monotonic()
        load = await asyncio.to_thread(target.wait_until_idle)
        rows.append(
            {
                "metric": "leaving clients",
                "of": name,
                "clients": count * len(LEAVES),
                "s": round(left_s - began_s, 1),
                "s until idle": round(time.monotonic() - left_s, 1),
                "waiting": load["waiting"],
                "running": load["running"],
                "held KV blocks": load["kvBlocksUsed"],
                "files after": await _files(target, before.files),
                "files before": before.files,
            }
        )
    return rows


async def _files(target: Target, wanted: int) -> int:
    """Return the server's open files, once they are as few as ``wanted`` or have had some time."""
    return (await asyncio.to_thread(target.settled_footprint, wanted + 2)).files


def _latencies(alone: tuple[float, float], crowded: tuple[float, float]) -> dict[str, float]:
    return {
        "others ms": crowded[0],
        "others ms, maximum": crowded[1],
        "alone ms": alone[0],
        "alone ms, maximum": alone[1],
    }


async def tried(target: Target, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row of each crowd. What the first one costs is not found free by the others."""
    return [
        await idle_connections(target, options.idle, options.seconds),
        await slow_readers(target, options.readers, options.seconds),
        *await leavers(target, options.leaving),
    ]


def main() -> int:
    """Try each crowd."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--leaving", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as target:
        rows = asyncio.run(tried(target, options))
    write("fuzz-crowds", rows, options.record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
