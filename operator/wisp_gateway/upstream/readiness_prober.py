"""Probe ``/readyz`` of pods that are not ready, ten times a second while requests wait.

Kubernetes' own probes are a second apart; the first request should go the moment the pod can take it. Without
queued requests only pods that broke a connection, and are ready in the snapshot, are probed.
"""

from __future__ import annotations

import asyncio

from wisp_gateway.errors import EndpointLost
from wisp_gateway.routing.model_state import ModelState, Pod
from wisp_gateway.upstream.pool import Pool, request_head

PERIOD_S = 0.1
TIMEOUT_S = 1.0


class ReadinessProber:
    """Probes the pods of models with queued requests or unhealthy pods."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._probed: dict[ModelState, asyncio.Task[None]] = {}
        self._in_flight: dict[Pod, asyncio.Task[None]] = {}

    def probe(self, state: ModelState) -> None:
        """Probe this model's pods until its queue is empty and none is unhealthy."""
        if state not in self._probed:
            self._probed[state] = asyncio.ensure_future(self._probe_model(state))

    def close(self) -> None:
        """Stop probing."""
        for task in [*self._probed.values(), *self._in_flight.values()]:
            task.cancel()

    async def _probe_model(self, state: ModelState) -> None:
        try:
            while len(state.queue) or state.has_unhealthy_pods:
                for pod in state.pods.values():
                    if not pod.is_ready and not pod.endpoint.draining and pod not in self._in_flight:
                        self._in_flight[pod] = asyncio.ensure_future(self._probe_pod(state, pod))
                await asyncio.sleep(PERIOD_S)
        finally:
            del self._probed[state]

    async def _probe_pod(self, state: ModelState, pod: Pod) -> None:
        address = pod.endpoint.address
        head = request_head("GET", "/readyz", address, [], body_bytes=0)
        try:
            if await self._pool.call(address, head, timeout_s=TIMEOUT_S) == 200:
                pod.observed_ready = True
                state.advance()
        except EndpointLost:
            pod.observed_ready = False  # not listening yet
        finally:
            del self._in_flight[pod]
