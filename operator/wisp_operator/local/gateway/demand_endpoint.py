"""HTTP endpoint of the loopback that receives the gateway's demand reports.

:mod:`wisp_operator.core.demand` reads them; a report wakes the controller at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from wisp_operator.core.access.tokens import GATEWAY_HEADER, HEADER, TokenKeys
from wisp_operator.core.demand import MAX_REPORT_BYTES, TOO_LARGE
from wisp_operator.local.pod_template import LOOPBACK

PATH = "/demand"
STOP_PATH = "/stop"


class DemandServer:
    """Receives the gateway's reports at :attr:`url`; other users of this machine reach it too.

    Args:
        receive: callback with each report.
        is_published: reader of whether the gateway's directory has every change; if not, the answer is 507,
            so that the gateway refuses names that it does not know with 503 instead of 404.
        stop: stopper of a model's pods, by its key and the requests that came before; returns whether it may
            be stopped.
    """

    def __init__(
        self,
        receive: Callable[[Mapping[str, Any]], None],
        tokens: TokenKeys,
        is_published: Callable[[], bool] = lambda: True,
        stop: Callable[[str, int], bool] = lambda *_: False,
    ) -> None:
        self._receive, self._tokens, self._is_published = receive, tokens, is_published
        self._stop = stop
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen on a port of the loopback that the system chooses."""
        app = web.Application(client_max_size=MAX_REPORT_BYTES)
        app.router.add_post(PATH, self._answer)
        app.router.add_post(STOP_PATH, self._answer_stop)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}{PATH}"

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer_stop(self, request: web.Request) -> web.Response:
        """Stop the pods of the model that the body names."""
        if not self._is_gateway(request):
            return _unauthorized()
        try:
            document = await request.json()
            key, arrivals = str(document["model"]), int(document["arrivals"])
        except (ValueError, RecursionError, KeyError, TypeError, OverflowError):
            return web.json_response({"error": "expected a model and its arrivals"}, status=400)
        if not self._stop(key, arrivals):
            return web.json_response({"error": "no such model, or one that does not go to zero"}, status=404)
        return web.Response(status=204)

    def _is_gateway(self, request: web.Request) -> bool:
        gateway, token = request.headers.get(GATEWAY_HEADER, ""), request.headers.get(HEADER, "")
        return self._tokens.proves_demand(gateway, token)

    async def _answer(self, request: web.Request) -> web.Response:
        if not self._is_gateway(request):
            return _unauthorized()
        try:
            report = await request.json()
            if self._tokens.is_used and _names_another(report, request.headers.get(GATEWAY_HEADER, "")):
                return _unauthorized()
            self._receive(report)
        except web.HTTPRequestEntityTooLarge:
            return web.json_response({"error": TOO_LARGE}, status=400)
        except (ValueError, RecursionError) as error:
            return web.json_response({"error": str(error)}, status=400)
        if not self._is_published():
            return web.json_response({"error": "the gateway's directory cannot be written"}, status=507)
        return web.Response(status=204)


def _names_another(report: object, gateway: str) -> bool:
    return isinstance(report, Mapping) and report.get("gateway", gateway) != gateway


def _unauthorized() -> web.Response:
    return web.json_response({"error": "demand is taken from this session's gateway alone"}, status=401)
