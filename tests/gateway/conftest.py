"""A gateway and fake pods in one thread's event loop; tests talk to them as clients."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
import uvloop

from wisp_gateway.config import Config
from wisp_gateway.discovery.snapshot import EMPTY, Snapshot, parse
from wisp_gateway.gateway import Gateway

sys.path.insert(0, str(Path(__file__).parent))  # for fake_apiserver

Handler = Callable[["FakePod", "Seen", asyncio.StreamWriter], Awaitable[None]]


class Seen:
    """A request as received by a pod."""

    def __init__(self, head: bytes, body: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.path, _ = lines[0].split(" ", 2)
        self.headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        self.body = body
        self.was_cut = False

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


class FakePod:
    """An HTTP server with a handler for its answers; it can die and come back on its port."""

    def __init__(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> None:
        self.handler = handler
        self.host = host
        self.is_ready = True
        self.state: dict[str, Any] = {}
        self.states_read = 0
        self.seen: list[Seen] = []
        self.port = port
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Close everything at once, as after kill -9."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
                length = next(
                    (
                        int(line[16:])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length: ")
                    ),
                    0,
                )
                seen = Seen(head, await reader.readexactly(length))
                if seen.path == "/readyz":
                    writer.write(answer(200 if self.is_ready else 503, b"{}"))
                    continue
                if seen.path == "/state":
                    self.states_read += 1
                    writer.write(answer(200, json.dumps(self.state).encode()))
                    continue
                self.seen.append(seen)
                await self.handler(self, seen, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            if self.seen:
                self.seen[-1].was_cut = True
        finally:
            self._writers.discard(writer)
            writer.close()


def answer(status: int, body: bytes, *headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} X",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


COMPLETION = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "complete"}}
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 7, "total_tokens": 8},
    }
).encode()


class Pods:
    """Handlers of a fake pod."""

    @staticmethod
    def talk(words: int = 5, gap_s: float = 0.0) -> Handler:
        """Answer w0 w1 …, streamed or complete."""

        async def handle(pod: FakePod, seen: Seen, writer: asyncio.StreamWriter) -> None:
            if not seen.json.get("stream"):
                await asyncio.sleep(gap_s)
                writer.write(answer(200, COMPLETION))
                return
            writer.write(STREAM_HEAD)
            for index in range(words):
                writer.write(framed(event(f"w{index} ")))
                await writer.drain()
                await asyncio.sleep(gap_s)
            writer.write(framed(event("", "stop")) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")

        return handle

    @staticmethod
    def write(*chunks: bytes, gap_s: float = 0.0, then: Literal["die", "stay"] = "stay") -> Handler:
        """Write these bytes; then die at once, or go on to the next request."""

        async def handle(pod: FakePod, seen: Seen, writer: asyncio.StreamWriter) -> None:
            for chunk in chunks:
                writer.write(chunk)
                await asyncio.sleep(gap_s)
            if then == "die":
                await writer.drain()
                await pod.kill()

        return handle

    @staticmethod
    def talk_once(may_answer: threading.Event) -> Handler:
        """Answer as soon as the event is set."""

        async def handle(pod: FakePod, seen: Seen, writer: asyncio.StreamWriter) -> None:
            while not may_answer.is_set():
                await asyncio.sleep(0.02)
            await Pods.talk()(pod, seen, writer)

        return handle

    @staticmethod
    def refuse(status: int, body: bytes) -> Handler:
        """Answer with this status and body."""
        return Pods.write(answer(status, body))

    @staticmethod
    def die_and_return(after_s: float, lives: int, *chunks: bytes) -> Handler:
        """Write ``chunks`` and die, ``lives`` times, each time back after ``after_s``; then talk."""
        deaths = 0

        async def handle(pod: FakePod, seen: Seen, writer: asyncio.StreamWriter) -> None:
            nonlocal deaths
            if deaths == lives:
                await Pods.talk()(pod, seen, writer)
                return
            deaths += 1
            for chunk in chunks:
                writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(0.02)
            await pod.kill()
            await asyncio.sleep(after_s)
            await pod.start()

        return handle


class FakeDiscovery:
    """Service discovery whose snapshots the test sets."""

    is_synced = True

    def __init__(self) -> None:
        self.snapshot: Snapshot = EMPTY
        self._watchers: list[Callable[[Snapshot], None]] = []

    def watch(self, on_change: Callable[[Snapshot], None]) -> None:
        self._watchers.append(on_change)
        on_change(self.snapshot)

    async def run(self) -> None:
        await asyncio.Event().wait()

    def set(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        for watcher in self._watchers:
            watcher(snapshot)


CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def text_of(stream: Any) -> str:
    """Return the text of a stream, read to its end."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


class World:
    """A gateway with its pods and clients; its methods may be called from the test's thread."""

    does = Pods
    STREAM_HEAD = STREAM_HEAD
    framed = staticmethod(framed)
    event = staticmethod(event)
    answer = staticmethod(answer)
    text_of = staticmethod(text_of)

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.discovery = FakeDiscovery()
        self.gateway: Gateway | None = None
        self.pods: list[FakePod] = []
        self._models: dict[str, dict[str, Any]] = {}
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._running: Any = None
        self._clients = ThreadPoolExecutor(32)
        self.http = httpx.Client(timeout=60, trust_env=False)

    def do(self, work: Any, timeout_s: float = 60) -> Any:
        """Run a coroutine in the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        async def calling() -> Any:
            return function(*arguments)

        return self.do(calling())

    def pod(self, handler: Handler | None = None, *, is_listening: bool = True, **where: Any) -> FakePod:
        pod = FakePod(handler or Pods.talk(), **where)
        self.do(pod.start())
        if not is_listening:
            self.do(pod.kill())
        self.pods.append(pod)
        return pod

    def model(self, name: str = "m", *pods: FakePod, state: str = "Ready", **fields: Any) -> None:
        """Put a model into the snapshot, or replace it; pods are ready unless ``ready`` says otherwise."""
        is_ready = fields.pop("ready", state == "Ready")
        namespace = fields.pop("namespace", "default")
        endpoints = [
            {"id": f"{name}-{pod.port}", "address": pod.address, "ready": is_ready, "draining": False}
            for pod in pods
        ]
        document = {"namespace": namespace, "name": name, "state": state, "endpoints": endpoints, **fields}
        self._models[f"{namespace}/{name}"] = document
        self._publish()

    def model_later(self, after_s: float, name: str, *pods: FakePod, **fields: Any) -> None:
        """Call :meth:`model` after ``after_s`` seconds."""
        threading.Timer(after_s, lambda: self.model(name, *pods, **fields)).start()

    def remove(self, key: str) -> None:
        del self._models[key]
        self._publish()

    def start(self, **settings: Any) -> World:
        """Start the gateway; the snapshot may change afterwards."""
        config = Config(directory=self.tmp_path / "unused.json", port=0, **settings)

        async def starting() -> Gateway:
            return Gateway(config, self.discovery)

        self.gateway = self.do(starting())
        self._running = asyncio.run_coroutine_threadsafe(self.gateway.run(), self._loop)
        self.until(lambda: self.gateway.server.started)
        return self

    def until(self, claim: Callable[[], Any], timeout_s: float = 60) -> Any:
        """Wait for a claim to become true."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            result = claim()
            if result:
                return result
            time.sleep(0.005)
        raise AssertionError("it did not come true in time")

    @property
    def url(self) -> str:
        assert self.gateway is not None
        return self.gateway.config.base_url

    def openai(self, **settings: Any) -> openai.OpenAI:
        settings = {
            "api_key": "none",
            "max_retries": 0,
            "timeout": 60,
            "base_url": f"{self.url}/v1",
            **settings,
        }
        return openai.OpenAI(**settings)

    def state(self, name: str = "m") -> dict[str, Any]:
        models = self.http.get(f"{self.url}/state").json()["models"]
        return next(model for model in models if model["name"] == name)

    def metric(self, line_start: str) -> float:
        lines = self.http.get(f"{self.url}/metrics").text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(line_start)), 0.0)

    def post(self, path: str = "/v1/chat/completions", **arguments: Any) -> httpx.Response:
        """POST without the SDK, by default a chat with model m."""
        if not {"json", "content", "data"} & arguments.keys():
            arguments["json"] = CHAT
        return self.http.post(self.url + path, **arguments)

    def chat(self, *, client: openai.OpenAI | None = None, **more: Any) -> Any:
        """Chat with model m through the SDK."""
        return (client or self.openai()).chat.completions.create(**{**CHAT, **more})

    def background(self, work: Callable[[], Any]) -> Future[Any]:
        """Run a blocking client in a thread of its own."""
        return self._clients.submit(work)

    def close(self) -> None:
        if self.gateway is not None:
            self.call(self.gateway.server.stop)
            self.call(self.gateway.server.stop)
            self._running.result(10)
        for pod in self.pods:
            self.do(pod.kill())
        self.http.close()
        self._clients.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def publish(self, models: list[dict[str, Any]]) -> None:
        """Replace the snapshot."""
        self.call(self.discovery.set, parse(json.dumps({"models": models})))

    def _publish(self) -> None:
        self.publish(list(self._models.values()))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()
