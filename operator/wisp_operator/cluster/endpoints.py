"""The operator's own HTTP port: demand of the gateways, probes of the kubelet, metrics.

Every replica accepts demand and keeps it, so that a new leader has it at once; a replica that does not lead
forwards it to the leader (docs/decisions/0004-every-replica-takes-demand.md).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from wisp_operator.cluster.connections import Connections
from wisp_operator.cluster.leader import Leader
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.core.access.tokens import GATEWAY_HEADER, HEADER, TokenKeys
from wisp_operator.core.demand import MAX_REPORT_BYTES, TOO_LARGE, DemandAggregator, Report

log = logging.getLogger(__name__)

FORWARDED = "X-Wisp-Passed-On"
FORWARD_TIMEOUT_S = 2.0
MAX_LINE_BYTES = 2048  # one line of a head
NOT_A_GATEWAY = (
    "demand is taken from this installation's gateways alone, and this token does not belong to the "
    "gateway's name. Give operator and gateways the same file --pod-token-keys."
)

Check = Callable[[], str]


class Endpoints:
    """``POST /demand``, ``GET /livez /readyz /metrics``."""

    def __init__(
        self,
        *,
        demand: DemandAggregator,
        tokens: TokenKeys,
        leader: Leader,
        metrics: Metrics,
        on_demand: Callable[[str], None],
        liveness_problem: Check,
        readiness_problem: Check,
    ) -> None:
        """Wire the endpoints; :meth:`start` listens.

        Args:
            on_demand: callback, given the key of every model with requests waiting or running.
            liveness_problem: returns what is wrong with this process in a sentence; empty if healthy.
            readiness_problem: returns why it cannot work yet; empty if it can.
        """
        self._demand, self._leader, self._metrics, self._on_demand = demand, leader, metrics, on_demand
        self._tokens = tokens
        self._liveness_problem, self._readiness_problem = liveness_problem, readiness_problem
        self._runner: web.AppRunner | None = None
        self._connections = Connections()
        self._listener: asyncio.base_events.Server | None = None
        self._sweep: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, once it listens."""
        if self._listener is None or not self._listener.sockets:
            raise RuntimeError("the endpoints do not listen yet")
        host, port = self._listener.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def start(self, host: str, port: int) -> None:
        """Listen."""
        timeout = aiohttp.ClientTimeout(total=FORWARD_TIMEOUT_S)
        self._session = aiohttp.ClientSession(timeout=timeout)
        app = web.Application(client_max_size=MAX_REPORT_BYTES, middlewares=[self._record_request])
        app.router.add_post("/demand", self._receive_demand)
        app.router.add_get("/livez", self._probe(self._liveness_problem))
        app.router.add_get("/readyz", self._probe(self._readiness_problem))
        app.router.add_get("/metrics", self._read_metrics)
        self._runner = web.AppRunner(
            app, access_log=None, max_line_size=MAX_LINE_BYTES, max_field_size=MAX_LINE_BYTES
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._listener = await self._connections.listen(self._runner.server, host, port)
        self._sweep = asyncio.create_task(self._connections.sweep(), name="silent connections")

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()
        if self._sweep is not None:
            self._sweep.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    @web.middleware
    async def _record_request(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Count a connection as active when its request is answered, not while it sends one."""
        answer = await handler(request)
        self._connections.record_request(request.transport)
        return answer

    async def _receive_demand(self, request: web.Request) -> web.Response:
        proof = {name: request.headers.get(name, "") for name in (HEADER, GATEWAY_HEADER)}
        if not self._tokens.proves_demand(proof[GATEWAY_HEADER], proof[HEADER]):  # before the body is read
            return web.json_response({"error": NOT_A_GATEWAY}, status=401)
        try:
            report = await request.json()
            if self._tokens.is_used and report["gateway"] != proof[GATEWAY_HEADER]:
                return web.json_response({"error": NOT_A_GATEWAY}, status=401)
            recorded = self._demand.record(report, time.time())
        except web.HTTPRequestEntityTooLarge:
            return web.json_response({"error": TOO_LARGE}, status=400)
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            return web.json_response({"error": f"not a demand report: {error!r}"}, status=400)
        if self._leader.is_leader:
            self._metrics.count(
                "demand_reports", way="passed-on" if FORWARDED in request.headers else "direct"
            )
            self._notify(recorded)
        elif FORWARDED not in request.headers:
            return await self._forward(report, proof)
        return web.Response(status=204)

    def _notify(self, models: Mapping[str, Report]) -> None:
        for key, report in models.items():
            # A rejected request waits nowhere; that it arrived shows in its age alone.
            if report.waiting or report.running or (report.idle_s is not None and report.idle_s < 2.0):
                self._on_demand(key)

    async def _forward(self, report: Mapping[str, Any], proof: Mapping[str, str]) -> web.Response:
        """Forward a report and its proof to the leader; 503 if no replica acts on it yet."""
        address = self._leader.address
        if not address or self._session is None:
            return web.json_response({"error": "no replica leads at the moment"}, status=503)
        try:
            async with self._session.post(
                f"http://{address}/demand", json=report, headers={FORWARDED: "1", **proof}
            ) as answer:
                return web.Response(status=answer.status)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            log.debug("demand could not be forwarded to %s: %s", address, error)
            return web.json_response({"error": f"the leader {address} does not answer"}, status=503)

    def _probe(self, check: Check) -> Callable[[web.Request], Any]:
        async def answer(_: web.Request) -> web.Response:
            problem = check()
            return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

        return answer

    async def _read_metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._metrics.text(), content_type="text/plain")
