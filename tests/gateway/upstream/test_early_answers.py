"""Answers that begin before their request was read: its bytes stay counted."""

from __future__ import annotations

import asyncio
import socket

from raw_client import connect, request

from wisp_gateway.upstream.connection import Connection

MIB = 1 << 20
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n3\r\n: \n\r\n"
)
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class UnreadingPod:
    """A pod that answers at once and reads no more than its kernel does."""

    is_ready = True

    def __init__(self, world, answer: bytes) -> None:
        self.answer, self.connections = answer, 0
        self.end = asyncio.Event()
        self.server = world.do(self._start())
        self.port = self.server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    async def _start(self):
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return await asyncio.start_server(self._serve, sock=listening, limit=1024)

    async def _serve(self, reader, writer):
        self.connections += 1
        await reader.readexactly(1)
        writer.transport.pause_reading()
        writer.write(self.answer)
        await self.end.wait()
        writer.close()

    async def kill(self):
        self.end.set()
        self.server.close()


CHAT = {"model": "m", "messages": [], "stream": True, "user": "x" * 3 * MIB}


def test_a_body_that_a_pod_has_not_read_counts_although_its_answer_began(world):
    """A tenant's pods and clients could fill the gateway with bodies that nothing counts any more."""
    world.model("m", UnreadingPod(world, STREAM), targetConcurrency=1000)
    world.start(max_held_bytes=32 * MIB)  # 8 MiB for one model
    clients = [connect(world) for _ in range(4)]
    for client in clients:
        client.sendall(request("/v1/chat/completions", **CHAT))
        client.recv(12)
    with connect(world) as last:
        last.sendall(request("/v1/chat/completions", **CHAT))
        assert last.recv(12) == b"HTTP/1.1 429"
    for client in clients:
        client.close()


def test_a_connection_with_an_unread_request_serves_no_other(world):
    pod = UnreadingPod(world, JSON)
    world.model("m", pod)
    world.start()
    for _ in range(3):
        assert world.post(json=CHAT).status_code == 200
    assert pod.connections == 3


class Transport(asyncio.Transport):
    """A transport that is read, or not."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def is_closing(self):
        return False

    def is_reading(self):
        return self.reads

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def write(self, data):
        pass

    def get_write_buffer_size(self):
        return 0


def test_a_complete_answer_pauses_nobody_elses():
    """Its client may be slow, and its connection serves another request already."""

    async def run():
        transport = Transport()
        connection = Connection("pod:1", lambda idle: None)
        connection.connection_made(transport)
        first = connection.request(b"", b"")
        connection.data_received(JSON)
        assert first.finished.done()
        second = connection.request(b"", b"")
        first.pause()
        assert transport.is_reading()
        second.pause()
        first.resume()
        assert not transport.is_reading()

    asyncio.run(run())
