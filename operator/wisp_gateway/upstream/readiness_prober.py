"""Asks pods that are not ready whether they are, ten times a second while somebody waits.

The directory learns of readiness from probes a second apart; the first request should go the moment the pod
can take it. Nobody waits, nobody asks, except for a pod that broke a connection and is said to be ready.
"""

from __future__ import annotations

import asyncio

from wisp_gateway.errors import EndpointLost
from wisp_gateway.routing.model_state import Desk, Pod
from wisp_gateway.upstream.pool import Pool, request_head

PERIOD_S = 0.1
TIMEOUT_S = 1.0


class Prober:
    """Follows the desks where somebody waits."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._following: dict[Desk, asyncio.Task[None]] = {}
        self._asking: dict[Pod, asyncio.Task[None]] = {}

    def follow(self, desk: Desk) -> None:
        """Ask this desk's pods until nobody waits there, and none is in doubt."""
        if desk not in self._following:
            self._following[desk] = asyncio.ensure_future(self._follow(desk))

    def close(self) -> None:
        """Stop asking."""
        for task in [*self._following.values(), *self._asking.values()]:
            task.cancel()

    async def _follow(self, desk: Desk) -> None:
        try:
            while len(desk.hold) or desk.has_doubts:
                for pod in desk.pods.values():
                    if not pod.is_ready and not pod.endpoint.draining and pod not in self._asking:
                        self._asking[pod] = asyncio.ensure_future(self._ask(desk, pod))
                await asyncio.sleep(PERIOD_S)
        finally:
            del self._following[desk]

    async def _ask(self, desk: Desk, pod: Pod) -> None:
        address = pod.endpoint.address
        head = request_head("GET", "/readyz", address, [], body_bytes=0)
        try:
            if await self._pool.call(address, head, timeout_s=TIMEOUT_S) == 200:
                pod.answers = True
                desk.advance()
        except EndpointLost:
            pod.answers = False  # it does not even listen; ask again in a moment
        finally:
            del self._asking[pod]
