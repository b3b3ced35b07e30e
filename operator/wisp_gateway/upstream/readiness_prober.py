"""Probe ``/readyz`` of pods that are not ready, ten times a second while requests wait.

Kubernetes' own probes are a second apart; the first request should go the moment the pod can take it. Without
queued requests only pods that broke a connection, and are ready in the snapshot, are probed. Of many pods a
few at a time, in turn: a namespace with a thousand that are never ready must not use up the gateway.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from wisp_gateway.errors import EndpointLost
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.pod import Pod
from wisp_gateway.upstream.pool import Pool, request_head

PERIOD_S = 0.1
TIMEOUT_S = 1.0
MAX_PROBES_A_NAMESPACE = 32


class ReadinessProber:
    """Probes the pods of models with queued requests or unhealthy pods."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._probed: dict[ModelState, asyncio.Task[None]] = {}
        self._in_flight: dict[Pod, asyncio.Task[None]] = {}
        self._of_namespace: Counter[str] = Counter()

    def probe(self, state: ModelState) -> None:
        """Probe this model's pods until its queue is empty and none is unhealthy."""
        if state not in self._probed:
            self._probed[state] = asyncio.ensure_future(self._probe_model(state))

    def close(self) -> None:
        """Stop probing."""
        for task in [*self._probed.values(), *self._in_flight.values()]:
            task.cancel()

    async def _probe_model(self, state: ModelState) -> None:
        begun = 0
        try:
            while len(state.queue) or state.has_unhealthy_pods:
                idle = [
                    pod
                    for pod in state.pods.values()
                    if not (pod.is_ready or pod.is_paused or pod.endpoint.draining or pod in self._in_flight)
                ]
                free = MAX_PROBES_A_NAMESPACE - self._of_namespace[state.model.namespace]
                count = min(len(idle), free)
                for number in range(begun, begun + count):
                    pod = idle[number % len(idle)]
                    self._of_namespace[state.model.namespace] += 1
                    self._in_flight[pod] = asyncio.ensure_future(self._probe_pod(state, pod))
                begun += count
                if state.ready:
                    state.advance()  # a pod whose pause is over reports no change
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
            self._of_namespace[state.model.namespace] -= 1
