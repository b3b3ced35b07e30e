"""Bounded connections of the operator's port: their number, an address's share, and their silence.

aiohttp bounds the bytes of a head, but neither the time of one nor the number of connections: a few thousand
that send nothing would take every file of the process, and with it the probes of the kubelet.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

MAX_CONNECTIONS = 512
MAX_OF_ADDRESS = 64
MAX_SILENCE_S = 30.0
SWEEPS = 4  # in that time


@dataclass(slots=True)
class _Open:
    """A connection's address, and the time of its last request (monotonic seconds)."""

    address: str
    active_at: float


class Connections:
    """Open connections, those first whose last request is longest ago; they make way for new ones."""

    def __init__(self) -> None:
        self._open: dict[asyncio.BaseTransport, _Open] = {}
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    async def listen(
        self, make: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> asyncio.base_events.Server:
        """Listen with bounded connections of the protocols of ``make``."""
        return await asyncio.get_running_loop().create_server(
            lambda: _Bounded(make(), self), host, port, reuse_address=True
        )

    async def sweep(self) -> None:
        """Abort silent connections until cancelled."""
        while True:
            await asyncio.sleep(MAX_SILENCE_S / SWEEPS)
            oldest_s = time.monotonic() - MAX_SILENCE_S
            for transport in [each for each, found in self._open.items() if found.active_at < oldest_s]:
                self._abort(transport)

    def record_request(self, transport: asyncio.BaseTransport | None) -> None:
        """Record that a connection sent a request, or got its answer."""
        if transport is not None and (found := self._open.pop(transport, None)) is not None:
            found.active_at = time.monotonic()
            self._open[transport] = found

    def add(self, transport: asyncio.BaseTransport) -> None:
        """Count a new connection; over a bound the most silent one ends."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        if self._of_address[address] >= MAX_OF_ADDRESS:
            self._abort(next(each for each, found in self._open.items() if found.address == address))
        elif len(self._open) >= MAX_CONNECTIONS:
            self._abort(next(iter(self._open)))
        self._open[transport] = _Open(address, time.monotonic())
        self._of_address[address] += 1

    def remove(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection that ended."""
        if (found := self._open.pop(transport, None)) is not None:
            self._of_address[found.address] -= 1
            if not self._of_address[found.address]:
                del self._of_address[found.address]

    def _abort(self, transport: asyncio.BaseTransport) -> None:
        self.remove(transport)
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()


class _Bounded(asyncio.Protocol):
    """A protocol whose connection is counted."""

    def __init__(self, protocol: asyncio.Protocol, connections: Connections) -> None:
        self._protocol, self._connections = protocol, connections
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._connections.add(transport)
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._connections.remove(self._transport)
        self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
