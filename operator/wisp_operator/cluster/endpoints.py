"""The operator's own HTTP port: demand of the gateways, probes of the kubelet, metrics.

Every replica takes demand and keeps it, so that a new leader knows at once who waits; one that does not
lead passes it on to the leader (docs/decisions/0004-every-replica-takes-demand.md).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from wisp_operator.cluster.leader import Leader
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.core.demand import DemandBook

log = logging.getLogger(__name__)

PASSED_ON = "X-Wisp-Passed-On"
PASS_ON_TIMEOUT_S = 2.0
MAX_REPORT_BYTES = 4 << 20

Health = Callable[[], str]


class Endpoints:
    """``POST /demand``, ``GET /livez /readyz /metrics``."""

    def __init__(
        self,
        *,
        book: DemandBook,
        leader: Leader,
        metrics: Metrics,
        heard: Callable[[str], None],
        illness: Health,
        unready: Health,
    ) -> None:
        """Wire the endpoints; :meth:`start` listens.

        Args:
            heard: called with the key of every model for which somebody waits or runs.
            illness: what is wrong with this process in a sentence, empty if nothing is.
            unready: why it cannot do its work yet, empty if it can.
        """
        self._book, self._leader, self._metrics, self._heard = book, leader, metrics, heard
        self._illness, self._unready = illness, unready
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, once it listens."""
        if self._runner is None or not self._runner.addresses:
            raise RuntimeError("the endpoints do not listen yet")
        host, port = self._runner.addresses[0][:2]
        return str(host), int(port)

    async def start(self, host: str, port: int) -> None:
        """Listen."""
        timeout = aiohttp.ClientTimeout(total=PASS_ON_TIMEOUT_S)
        self._session = aiohttp.ClientSession(timeout=timeout)
        app = web.Application(client_max_size=MAX_REPORT_BYTES)
        app.router.add_post("/demand", self._demand)
        app.router.add_get("/livez", self._probe(self._illness))
        app.router.add_get("/readyz", self._probe(self._unready))
        app.router.add_get("/metrics", self._read_metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _demand(self, request: web.Request) -> web.Response:
        try:
            report = await request.json()
            self._book.record(report, time.time())
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        if self._leader.is_leader:
            self._metrics.count(
                "demand_reports", way="passed-on" if PASSED_ON in request.headers else "direct"
            )
            self._wake(report["models"])
        elif PASSED_ON not in request.headers:
            return await self._pass_on(report)
        return web.Response(status=204)

    def _wake(self, models: Mapping[str, Mapping[str, Any]]) -> None:
        for key, told in models.items():
            # A rejected request waits nowhere; that it arrived shows in its age alone.
            idle_s = told.get("idleSeconds")
            if told["waiting"] or told["running"] or (idle_s is not None and idle_s < 2.0):
                self._heard(key)

    async def _pass_on(self, report: Mapping[str, Any]) -> web.Response:
        """Give a report to the leader; 503 lets the gateway know that nobody acts on it yet."""
        address = self._leader.address
        if not address or self._session is None:
            return web.json_response({"error": "no replica leads at the moment"}, status=503)
        try:
            async with self._session.post(
                f"http://{address}/demand", json=report, headers={PASSED_ON: "1"}
            ) as answer:
                return web.Response(status=answer.status)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            log.debug("demand could not be passed on to %s: %s", address, error)
            return web.json_response({"error": f"the leader {address} does not answer"}, status=503)

    def _probe(self, complaint: Health) -> Callable[[web.Request], Any]:
        async def answer(_: web.Request) -> web.Response:
            problem = complaint()
            return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

        return answer

    async def _read_metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._metrics.text(), content_type="text/plain")
