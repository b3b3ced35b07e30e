"""Tells the operator how many wait and run: at once when somebody waits, else each second.

From it the operator wakes and scales. The operator may be away: that is logged once, and ready pods are
served all the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from urllib.parse import urlsplit

from .errors import EndpointLost
from .fleet import Fleet
from .pool import Pool, request_head

log = logging.getLogger(__name__)

PERIOD_S = 1.0
TIMEOUT_S = 5.0


class Demand:
    """Posts docs/architecture.md's demand to one URL."""

    def __init__(self, url: str, name: str, fleet: Fleet, pool: Pool) -> None:
        parts = urlsplit(url)
        self.address = f"{parts.hostname}:{parts.port or 80}"
        self._url = url
        self._path = parts.path or "/"
        self._name = name
        self._fleet = fleet
        self._pool = pool
        self._urgent = asyncio.Event()
        self._is_away = False

    def post_now(self) -> None:
        """Post without waiting for the second to end."""
        self._urgent.set()

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            self._urgent.clear()
            await self._post()
            try:
                await asyncio.wait_for(self._urgent.wait(), PERIOD_S)
            except TimeoutError:
                continue

    async def _post(self) -> None:
        body = json.dumps(report(self._name, self._fleet)).encode()
        headers = [(b"content-type", b"application/json")]
        head = request_head("POST", self._path, self.address, headers, body_bytes=len(body))
        try:
            status = await self._pool.call(self.address, head, body, timeout_s=TIMEOUT_S)
        except EndpointLost as error:
            self._note(str(error))
        else:
            self._note("" if status < 300 else f"it answered {status}")

    def _note(self, problem: str) -> None:
        if problem and not self._is_away:
            log.warning("demand %s: %s; models at zero stay there until it answers", self._url, problem)
        elif not problem and self._is_away:
            log.info("demand %s: answers again", self._url)
        self._is_away = bool(problem)


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
