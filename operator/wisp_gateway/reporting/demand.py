"""Report demand to the operator, which wakes and scales by it: at once when a request waits, or each second.

An operator that is away is logged once, and ready pods are served all the same. A host name with several
addresses (a headless Service) means several replicas of the operator: each gets its own posts, so that one
that hangs delays no other.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
import math
import socket
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from wisp_gateway.errors import EndpointLost
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.registry import ModelRegistry
from wisp_gateway.upstream.pool import Pool, request_head
from wisp_gateway.upstream.tokens import Tokens
from wisp_http.trace_context import MAX_CONTEXTS

log = logging.getLogger(__name__)

PERIOD_S = 1.0
STOP_PATH = "/stop"
RESOLVE_S = 2.0
TIMEOUT_S = 5.0
MAX_MODELS = 8192  # those with requests are fewer, and a report of as many is one that the operator reads
MAX_TRACED_MODELS = 256


class DemandReporter:
    """Posts demand (docs/contracts.md) to every address of one URL."""

    def __init__(self, url: str, name: str, registry: ModelRegistry, pool: Pool, tokens: Tokens) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._url = url
        self._path = parts.path or "/"
        self._name = name
        self._registry = registry
        self._pool = pool
        self._tokens = tokens
        self._replicas: dict[str, OperatorReplica] = {}
        self._was_away = False

    @property
    def addresses(self) -> set[str]:
        """Addresses of the operator's replicas, ``host:port``."""
        return set(self._replicas)

    @property
    def is_away(self) -> bool:
        """True if no replica of the operator took the last report: nothing wakes meanwhile."""
        problems = [replica.problem for replica in self._replicas.values()]
        return not problems or (None not in problems and all(problems))

    def post_now(self) -> None:
        """Post at once instead of at the next second."""
        for replica in self._replicas.values():
            replica.urgent.set()

    async def run(self) -> None:
        """Post until cancelled.

        Raises:
            ExceptionGroup: the task of a replica ended by a bug; the others are cancelled.
        """
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._set_addresses(await self._resolve(), tasks)
                self._log_transitions()
                await asyncio.sleep(RESOLVE_S)

    async def _resolve(self) -> set[str]:
        """Resolve the URL's host; the last addresses while that fails."""
        loop = asyncio.get_running_loop()
        try:
            resolved = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError:
            return self.addresses
        hosts = {str(address[0]) for *_, address in resolved}
        return {f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}" for host in hosts}

    def _set_addresses(self, addresses: set[str], tasks: asyncio.TaskGroup) -> None:
        for gone in self.addresses - addresses:
            self._replicas.pop(gone).task.cancel()
        for address in addresses - self.addresses:
            self._replicas[address] = OperatorReplica(self, address, tasks)

    async def post(self, address: str) -> str:
        """Post demand once to one replica; return the failure, empty on success."""
        return await self._send(self._path, address, report(self._name, self._registry))

    async def stop(self, state: ModelState) -> str:
        """Ask ``wisp up`` to stop a model's pods until a request comes; return the failure."""
        address = next(iter(self.addresses), None)
        if address is None:
            return f"{self._host} has no address"
        return await self._send(STOP_PATH, address, {"model": state.model.key, "arrivals": state.arrivals})

    async def _send(self, path: str, address: str, document: object) -> str:
        """Post a document to one replica; return the failure, empty on success."""
        body = json.dumps(document).encode()
        headers, own = [(b"content-type", b"application/json")], self._tokens.for_demand(self._name)
        head = request_head("POST", path, address, headers, body_bytes=len(body), own=own)
        try:
            status = await self._pool.call(address, head, body, timeout_s=TIMEOUT_S)
        except EndpointLost as error:
            return str(error)
        return "" if status < 300 else f"{address} answered {status}"

    def _log_transitions(self) -> None:
        """Log once when no replica takes demand any more, and once when one does again."""
        problems = [replica.problem for replica in self._replicas.values()] or [
            f"{self._host} has no address"
        ]
        is_away = self.is_away
        if is_away and not self._was_away:
            log.warning("demand %s: %s; models at zero stay there until it answers", self._url, problems[0])
        elif not is_away and self._was_away:
            log.info("demand %s: answers again", self._url)
        self._was_away = is_away


class OperatorReplica:
    """One replica of the operator: posts at once when ``urgent`` is set, else each second."""

    def __init__(self, demand: DemandReporter, address: str, tasks: asyncio.TaskGroup) -> None:
        self.urgent = asyncio.Event()
        self.problem: str | None = None  # None: not posted yet
        self.task = tasks.create_task(self._run(demand, address))

    async def _run(self, demand: DemandReporter, address: str) -> None:
        while True:
            self.urgent.clear()
            self.problem = await demand.post(address)
            try:
                await asyncio.wait_for(self.urgent.wait(), PERIOD_S)
            except TimeoutError:
                continue


def report(gateway: str, registry: ModelRegistry) -> dict[str, Any]:
    """Return the demand of every model, in the format of docs/contracts.md; of too many, the last asked."""
    states = registry.states()
    if len(states) > MAX_MODELS:
        states = heapq.nsmallest(MAX_MODELS, states, key=_silence_s)
    models: dict[str, dict[str, Any]] = {
        state.model.key: {
            "waiting": len(state.queue),
            "running": state.running,
            "arrivals": state.arrivals,
            "idleSeconds": None if state.idle_s is None else round(state.idle_s, 3),
            "ready": sum(pod.is_ready for pod in state.pods.values()),
        }
        for state in states
    }
    waking = (state for state in states if len(state.queue) and not models[state.model.key]["ready"])
    for state in islice(waking, MAX_TRACED_MODELS):
        if traces := state.queue.traces(MAX_CONTEXTS):
            models[state.model.key]["traces"] = traces
    return {"gateway": gateway, "models": models}


def _silence_s(state: ModelState) -> float:
    return math.inf if state.idle_s is None else state.idle_s
