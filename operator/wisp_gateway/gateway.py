"""Wiring of the gateway: components, background loops, life cycle from listening to stopped."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from wisp_gateway.app import App
from wisp_gateway.config import Config, cluster_environment
from wisp_gateway.discovery.file import FileDiscovery
from wisp_gateway.discovery.snapshot import ServiceDiscovery, Snapshot
from wisp_gateway.errors import EndpointLost
from wisp_gateway.inbound.server import Server, listen
from wisp_gateway.limits.limiter import Limiter
from wisp_gateway.limits.state_file import StateFile
from wisp_gateway.metrics import Metrics
from wisp_gateway.reporting import model_metrics
from wisp_gateway.reporting.demand import DemandReporter
from wisp_gateway.reporting.feed.control import Control
from wisp_gateway.reporting.feed.feed import Feed
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.registry import ModelRegistry
from wisp_gateway.upstream.capacity_reader import CapacityReader
from wisp_gateway.upstream.pool import Pool, request_head
from wisp_gateway.upstream.proxy import Proxy
from wisp_gateway.upstream.readiness_prober import ReadinessProber
from wisp_gateway.upstream.stored_responses import StoredResponses
from wisp_gateway.upstream.tokens import Tokens
from wisp_http.tracing import open_tracer

log = logging.getLogger(__name__)

POD_STATE_TIMEOUT_S = 2.0


class Gateway:
    """One gateway on one listening socket.

    Args:
        discovery: source of snapshots; default: the one that the configuration names.

    Raises:
        StartError: it cannot listen.
    """

    def __init__(self, config: Config, discovery: ServiceDiscovery | None = None) -> None:
        self._sockets = [listen(config.host, config.port)]
        if config.metrics_port is not None:
            self._sockets.append(listen(config.host, config.metrics_port))
        self.config = config = replace(config, port=self._sockets[0].getsockname()[1])
        self.metrics = Metrics()
        self.registry = ModelRegistry(self.metrics, self._on_wait)
        self._discovery: ServiceDiscovery = discovery or _discovery(config)
        self._pool = Pool(connect_timeout_s=config.connect_timeout_s)
        self._prober = ReadinessProber(self._pool)
        self._tokens = Tokens(config.pod_token_keys)
        self._capacities = CapacityReader(self._pool, self._tokens)
        self._demand: DemandReporter | None = None
        if config.demand_url is not None:
            self._demand = DemandReporter(
                config.demand_url, config.name, self.registry, self._pool, self._tokens
            )
            self.registry.is_operator_away = lambda: self._demand is not None and self._demand.is_away
        proxy = Proxy(self.registry, self._pool, self.metrics, self._tokens, config.max_answer_bytes)
        stored = StoredResponses(self._pool, self.metrics, self._tokens, config.max_answer_bytes)
        self._tracer = open_tracer(config.otlp_endpoint, "wisp-gateway")
        limiter = Limiter()
        self._limits_state = StateFile(config.limits_state, limiter) if config.limits_state else None
        self.feed = Feed(
            config,
            self.registry,
            self._pod_state,
            on_wake=lambda row: model_metrics.count_wake(self.metrics, row),
        )
        self._control = Control(
            self.registry, self._demand.stop if config.directory and self._demand else None
        )
        self.app = App(
            config,
            self.registry,
            proxy,
            stored,
            self.metrics,
            limiter,
            lambda: self._discovery.is_synced,
            self.feed,
            self._control,
            self._tracer,
        )
        self.server = Server(self.app, config, self._on_stopping, self.app.abort)

    async def run(self) -> None:
        """Serve until stopped by a signal or by ``server.stop()``."""
        self._discovery.watch(self._on_snapshot)
        loops = [self._discovery.run(), self._every_second(), self.feed.run()]
        if self._demand is not None:
            loops.append(self._demand.run())
        if self._limits_state is not None:
            self._limits_state.read()
            loops.append(self._limits_state.run())
        tasks = [asyncio.ensure_future(loop) for loop in loops]
        for task in tasks:
            task.add_done_callback(self._on_loop_ended)
        log.info("listening on %s", self.config.base_url)
        try:
            await self.server.serve(sockets=self._sockets)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._prober.close()
            self._capacities.close()
            self._control.close()
            self.feed.stop_reading()
            self._pool.close()
            if self._tracer is not None:
                self._tracer.close()
            for listening in self._sockets:
                listening.close()
        for failure in ended:
            if isinstance(failure, Exception):
                raise failure
        log.info("stopped")

    def _on_loop_ended(self, task: asyncio.Future[None]) -> None:
        """Stop the gateway: without one of its loops it would serve outdated endpoints for ever."""
        if not task.cancelled():
            log.error("bug in the gateway: a loop ended; stopping", exc_info=task.exception())
            self.server.stop()

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self.registry.update(snapshot)
        self._tokens.keep_only(set(snapshot))
        addresses = {endpoint.address for model in snapshot.values() for endpoint in model.endpoints}
        self._pool.keep_only(addresses | (self._demand.addresses if self._demand else set()))

    def _on_wait(self, state: ModelState) -> None:
        if self._demand is not None and not state.ready:
            self._demand.post_now()
        self._prober.probe(state)

    def _on_stopping(self) -> None:
        log.info("stopping: finishing what runs, at most %g s", self.config.drain_timeout_s)
        self.app.is_stopping = True
        self.feed.close()

    async def _pod_state(self, model_key: str, address: str) -> bytes | None:
        """Return a pod's ``/state``; None if it does not answer."""
        own = self._tokens.for_pods(model_key)
        head = request_head("GET", "/state", address, [], body_bytes=0, own=own)
        try:
            status, body = await self._pool.fetch(address, head, timeout_s=POD_STATE_TIMEOUT_S)
        except EndpointLost:
            return None
        return body if status == 200 else None

    async def _every_second(self) -> None:
        while True:
            for state in self.registry.states():
                state.sample()
                self._capacities.read(state)
            self.feed.every_second()
            self._pool.close_stalled(1.0, self.config.idle_timeout_s)
            await asyncio.sleep(1.0)


def _discovery(config: Config) -> ServiceDiscovery:
    """Return the discovery that the configuration names.

    Raises:
        StartError: no credentials for the cluster.
    """
    if config.directory is not None:
        return FileDiscovery(config.directory)
    # aiohttp costs 0.2 s at start and 20 MB, which `wisp up` does not need.
    from wisp_gateway.discovery.api_server import ApiServer
    from wisp_gateway.discovery.credentials import find
    from wisp_gateway.discovery.kubernetes import KubernetesDiscovery

    return KubernetesDiscovery(ApiServer(find(cluster_environment())), config.namespaces)
