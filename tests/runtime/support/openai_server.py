"""A small OpenAI server without a model: paced tokens, for clients' tests and dry runs of benchmarks.

    python tests/runtime/support/openai_server.py --port 8000 --model m [--first-ms 20] [--token-ms 2]

In tests a server's ``behaviour`` is replaced: it gets the request's body and yields the response's parts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
Behaviour = Callable[[dict], AsyncIterator[bytes]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(body: dict) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def tokens(count: int) -> Iterator[bytes]:
    """Events of a whole answer, the one with its usage included."""
    for number in range(count):
        yield event({"choices": [{"index": 0, "text": f"t{number} "}], "usage": None})
    yield event({"choices": [], "usage": {"completion_tokens": count}})
    yield b"data: [DONE]\n\n"


def paced(first_s: float, token_s: float) -> Behaviour:
    async def respond(body: dict) -> AsyncIterator[bytes]:
        yield HEAD
        await asyncio.sleep(first_s)
        for part in tokens(body["max_tokens"]):
            yield chunk(part)
            await asyncio.sleep(token_s)
        yield b"0\r\n\r\n"

    return respond


@dataclass
class OpenAIServer:
    behaviour: Behaviour = field(default_factory=lambda: paced(0.0, 0.0))
    models: tuple[str, ...] = ("m",)
    bodies: list[dict] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            if head.startswith("GET"):
                body = json.dumps({"data": [{"id": name} for name in self.models]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            else:
                await self._answer(head, reader, writer)
            await writer.drain()
        writer.close()

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = next(
            int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length")
        )
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        async for part in self.behaviour(body):
            writer.write(part)
            await writer.drain()


@contextlib.contextmanager
def running(server: OpenAIServer) -> Iterator[OpenAIServer]:
    """Serve in a thread of its own."""
    loop, started = asyncio.new_event_loop(), threading.Event()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.start())
        started.set()
        loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    started.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="m")
    parser.add_argument("--first-ms", type=float, default=20.0)
    parser.add_argument("--token-ms", type=float, default=2.0)
    asked = parser.parse_args()

    async def serve() -> None:
        server = OpenAIServer(paced(asked.first_ms / 1e3, asked.token_ms / 1e3), (asked.model,))
        async with await server.start(asked.port) as listening:
            await listening.serve_forever()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
