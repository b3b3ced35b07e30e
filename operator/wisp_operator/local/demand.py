"""Where gateways say how many requests wait and run: a small HTTP endpoint of the loopback, and their sum.

The text is the contract *Demand* of docs/architecture.md. A report wakes the controller at once; nothing is
decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from wisp_operator.local.template import LOOPBACK

PATH = "/demand"
FORGET_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """What one gateway said of one model; units as in :class:`wisp_operator.facts.Demand`."""

    waiting: int
    running: int
    arrivals: int
    idle_s: float | None
    at: float


class DemandBook:
    """The last report of every gateway, by model."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[str, Report]] = {}

    def record(self, document: Mapping[str, Any], now: float) -> None:
        """Take one gateway's report, given at ``now`` seconds.

        Raises:
            ValueError: the document is not as the contract says.
        """
        try:
            models = {str(key): _report(found, now) for key, found in document["models"].items()}
            self._reports[str(document["gateway"])] = models
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a demand report (docs/architecture.md, Demand): {error!r}") from error

    def total(self, key: str, now: float) -> Report:
        """Requests of a model over all gateways; one that fell silent no longer counts."""
        reports = [
            models[key]
            for models in self._reports.values()
            if key in models and now - models[key].at < FORGET_AFTER_S
        ]
        idle = [report.idle_s + now - report.at for report in reports if report.idle_s is not None]
        return Report(
            waiting=sum(report.waiting for report in reports),
            running=sum(report.running for report in reports),
            arrivals=sum(report.arrivals for report in reports),
            idle_s=min(idle, default=None),
            at=now,
        )


class DemandServer:
    """Receives the gateways' reports at :attr:`url`."""

    def __init__(self, receive: Callable[[Mapping[str, Any]], None]) -> None:
        self._receive = receive
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen on a port of the loopback that the system chooses."""
        app = web.Application()
        app.router.add_post(PATH, self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}{PATH}"

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            self._receive(await request.json())
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.Response(status=204)


def _report(found: Mapping[str, Any], now: float) -> Report:
    idle_s = found.get("idleSeconds")
    return Report(
        waiting=int(found["waiting"]),
        running=int(found["running"]),
        arrivals=int(found.get("arrivals", 0)),
        idle_s=None if idle_s is None else float(idle_s),
        at=now,
    )
