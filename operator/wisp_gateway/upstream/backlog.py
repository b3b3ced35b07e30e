"""Chunks of a stream that its client has no room for yet, so that a pod need not wait for a slow client."""

from __future__ import annotations

import asyncio
from collections import deque

from wisp_gateway.inbound.client import Client
from wisp_gateway.upstream.connection import Answer

# A pod that waits reads on when this much was sent: it gives up a reader that takes nothing for minutes.
RESUME_BYTES = 64 * 1024
# Some 5,000 events of a token each: most answers end before their pod has to wait.
MAX_BACKLOG_BYTES = 1024 * 1024


class Backlog:
    """Chunks kept, up to a bound, while the client does not read; over it the pod is paused.

    Attributes:
        is_full: True from the chunk that filled the client's buffer until everything kept was sent.
    """

    def __init__(self, client: Client, answer: Answer) -> None:
        self._protocol = client.protocol
        self._send_chunk = client.protocol.send_chunk
        self._held = client.held
        self._answer = answer
        self._chunks: deque[bytes] = deque()
        self._held_bytes = 0
        self.is_full = False
        self._paused_at_bytes: int | None = None
        self._emptied: asyncio.Future[None] | None = None

    def add(self, chunk: bytes) -> None:
        """Keep a chunk behind others; the first one was sent, and has filled the client's buffer."""
        if self.is_full:
            self._keep(chunk)
            return
        self.is_full = True
        # The loop reports a full buffer only after it has drained the pod's socket, megabytes later.
        asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send what is kept while the client takes it; called when it reads again."""
        if not self._protocol.is_writable:
            return
        while self._chunks:
            chunk = self._chunks.popleft()
            self._release(len(chunk))
            self._resume_pod()
            if not self._send_chunk(chunk):
                asyncio.get_running_loop().call_soon(self.flush)
                return
        self.is_full = False
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    async def emptied(self) -> None:
        """Wait until the client has room for everything that was kept."""
        if self.is_full:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    def close(self) -> None:
        """Drop what is kept."""
        self._chunks.clear()
        self._release(self._held_bytes)

    def _keep(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        # The chunk is here already; a budget that refuses it pauses the pod: one read at most is uncounted.
        if self._held.take(len(chunk)):
            self._held_bytes += len(chunk)
            if self._held_bytes < MAX_BACKLOG_BYTES:
                return
        self._paused_at_bytes = self._held_bytes
        self._answer.pause()

    def _resume_pod(self) -> None:
        paused_at_bytes = self._paused_at_bytes
        if paused_at_bytes is None:
            return
        if not self._chunks or self._held_bytes <= paused_at_bytes - RESUME_BYTES:
            self._paused_at_bytes = None
            self._answer.resume()

    def _release(self, count: int) -> None:
        count = min(count, self._held_bytes)
        self._held_bytes -= count
        self._held.release(count)
