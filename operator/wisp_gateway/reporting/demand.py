"""Tells the operator how many wait and run: at once when somebody waits, else each second.

From it the operator wakes and scales. The operator may be away: that is logged once, and ready pods are
served all the same. A name that stands for several addresses (a headless Service) means several replicas of
the operator: each is told, on its own, so that one that hangs delays nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any
from urllib.parse import urlsplit

from wisp_gateway.errors import EndpointLost
from wisp_gateway.routing.registry import Fleet
from wisp_gateway.upstream.pool import Pool, request_head

log = logging.getLogger(__name__)

PERIOD_S = 1.0
RESOLVE_S = 2.0
TIMEOUT_S = 5.0


class Demand:
    """Posts docs/architecture.md's demand to every address of one URL."""

    def __init__(self, url: str, name: str, fleet: Fleet, pool: Pool) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._url = url
        self._path = parts.path or "/"
        self._name = name
        self._fleet = fleet
        self._pool = pool
        self._replicas: dict[str, Replica] = {}
        self._is_away = False

    @property
    def addresses(self) -> set[str]:
        """Where replicas of the operator listen, ``host:port``."""
        return set(self._replicas)

    def post_now(self) -> None:
        """Post without waiting for the second to end."""
        for replica in self._replicas.values():
            replica.urgent.set()

    async def run(self) -> None:
        """Post until cancelled."""
        try:
            while True:
                self._follow(await self._resolve())
                self._note()
                await asyncio.sleep(RESOLVE_S)
        finally:
            self._follow(set())

    async def _resolve(self) -> set[str]:
        """Every address of the URL's host; the last ones while its name cannot be resolved."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError:
            return self.addresses
        hosts = {str(address[0]) for *_, address in found}
        return {f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}" for host in hosts}

    def _follow(self, addresses: set[str]) -> None:
        for gone in self.addresses - addresses:
            self._replicas.pop(gone).task.cancel()
        for address in addresses - self.addresses:
            self._replicas[address] = Replica(self, address)

    async def post(self, address: str) -> str:
        """Post once; return what went wrong, empty if nothing."""
        body = json.dumps(report(self._name, self._fleet)).encode()
        headers = [(b"content-type", b"application/json")]
        head = request_head("POST", self._path, address, headers, body_bytes=len(body))
        try:
            status = await self._pool.call(address, head, body, timeout_s=TIMEOUT_S)
        except EndpointLost as error:
            return str(error)
        return "" if status < 300 else f"{address} answered {status}"

    def _note(self) -> None:
        """Say it once when no replica takes demand any more, and once when one does again."""
        problems = [replica.problem for replica in self._replicas.values()]
        is_away = bool(problems) and None not in problems and all(problems)
        if not problems:
            problems, is_away = [f"{self._host} has no address"], True
        if is_away and not self._is_away:
            log.warning("demand %s: %s; models at zero stay there until it answers", self._url, problems[0])
        elif not is_away and self._is_away:
            log.info("demand %s: answers again", self._url)
        self._is_away = is_away


class Replica:
    """One address of the operator: told at once when ``urgent`` is set, else each second."""

    def __init__(self, demand: Demand, address: str) -> None:
        self.urgent = asyncio.Event()
        self.problem: str | None = None  # None: not tried yet
        self.task = asyncio.ensure_future(self._run(demand, address))

    async def _run(self, demand: Demand, address: str) -> None:
        while True:
            self.urgent.clear()
            self.problem = await demand.post(address)
            try:
                await asyncio.wait_for(self.urgent.wait(), PERIOD_S)
            except TimeoutError:
                continue


def report(gateway: str, fleet: Fleet) -> dict[str, Any]:
    """The demand of every model, as docs/architecture.md has it."""
    models = {
        desk.model.key: {
            "waiting": len(desk.hold),
            "running": desk.running,
            "arrivals": desk.arrivals,
            "idleSeconds": None if desk.idle_s is None else round(desk.idle_s, 3),
        }
        for desk in fleet.desks()
    }
    return {"gateway": gateway, "models": models}
