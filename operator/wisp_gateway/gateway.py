"""The gateway put together: its parts, the loops beside the server, its life from listening to stopped."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace

from wisp_gateway.app import App
from wisp_gateway.config import Config, cluster_environment
from wisp_gateway.discovery.file import FileDirectory
from wisp_gateway.discovery.snapshot import Directory, Snapshot
from wisp_gateway.inbound.server import Server, listen
from wisp_gateway.metrics import Metrics
from wisp_gateway.reporting.demand import Demand
from wisp_gateway.routing.model_state import Desk
from wisp_gateway.routing.registry import Fleet
from wisp_gateway.upstream.pool import Pool
from wisp_gateway.upstream.proxy import Relay
from wisp_gateway.upstream.readiness_prober import Prober

log = logging.getLogger(__name__)


class Gateway:
    """One gateway on one listening socket.

    Args:
        directory: where models come from; default: the file that the configuration names.

    Raises:
        StartError: it cannot listen.
    """

    def __init__(self, config: Config, directory: Directory | None = None) -> None:
        self._socket: socket.socket = listen(config.host, config.port)
        self.config = config = replace(config, port=self._socket.getsockname()[1])
        self.metrics = Metrics()
        self.fleet = Fleet(self.metrics, self._on_wait)
        self._directory: Directory = directory or _directory(config)
        self._pool = Pool(connect_timeout_s=config.connect_timeout_s)
        self._prober = Prober(self._pool)
        self._demand: Demand | None = None
        if config.demand_url is not None:
            self._demand = Demand(config.demand_url, config.name, self.fleet, self._pool)
        relay = Relay(self.fleet, self._pool, self.metrics, config.max_answer_bytes)
        self.app = App(config, self.fleet, relay, self.metrics, lambda: self._directory.is_synced)
        self.server = Server(self.app, config, self._on_stopping, self.app.abort)

    async def run(self) -> None:
        """Serve until stopped by a signal or by ``server.stop()``."""
        self._directory.watch(self._on_directory)
        loops = [self._directory.run(), self._every_second()]
        if self._demand is not None:
            loops.append(self._demand.run())
        tasks = [asyncio.ensure_future(loop) for loop in loops]
        for task in tasks:
            task.add_done_callback(self._on_loop_ended)
        log.info("listening on %s", self.config.base_url)
        try:
            await self.server.serve(sockets=[self._socket])
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._prober.close()
            self._pool.close()
            self._socket.close()
        for failure in ended:
            if isinstance(failure, Exception):
                raise failure
        log.info("stopped")

    def _on_loop_ended(self, task: asyncio.Future[None]) -> None:
        """A gateway without one of its loops would serve yesterday's pods for ever; better a new one."""
        if not task.cancelled():
            log.error("bug in the gateway: a loop ended; stopping", exc_info=task.exception())
            self.server.stop()

    def _on_directory(self, snapshot: Snapshot) -> None:
        self.fleet.update(snapshot)
        addresses = {endpoint.address for model in snapshot.values() for endpoint in model.endpoints}
        self._pool.keep_only(addresses | (self._demand.addresses if self._demand else set()))

    def _on_wait(self, desk: Desk) -> None:
        if self._demand is not None and not desk.ready:
            self._demand.post_now()
        self._prober.follow(desk)

    def _on_stopping(self) -> None:
        log.info("stopping: finishing what runs, at most %g s", self.config.drain_timeout_s)
        self.app.is_stopping = True

    async def _every_second(self) -> None:
        while True:
            for desk in self.fleet.desks():
                desk.sample()
            self._pool.close_stalled(1.0, self.config.idle_timeout_s)
            await asyncio.sleep(1.0)


def _directory(config: Config) -> Directory:
    """The directory that the configuration names.

    Raises:
        StartError: it is a cluster's, and nothing says how to reach that.
    """
    if config.directory is not None:
        return FileDirectory(config.directory)
    # aiohttp costs 0.2 s of start and 20 MB, which `wisp up` need not pay.
    from wisp_gateway.discovery.api_server import ApiServer
    from wisp_gateway.discovery.credentials import find
    from wisp_gateway.discovery.kubernetes import KubernetesDirectory

    return KubernetesDirectory(ApiServer(find(cluster_environment())), config.namespaces)
