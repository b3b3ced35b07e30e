"""One replica of the operator: its parts, how they are wired, and how they end together."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

import kopf

from wisp_http.tracing import open_tracer
from wisp_operator.api import API_VERSION, PLURAL
from wisp_operator.cluster.access.api_server import Api, ApiError
from wisp_operator.cluster.access.kinds import KINDS
from wisp_operator.cluster.access.writer import ClusterWriter
from wisp_operator.cluster.config import OperatorConfig, trace_endpoint
from wisp_operator.cluster.endpoints import Endpoints
from wisp_operator.cluster.leader import Leader
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.cluster.observation import watches
from wisp_operator.cluster.observation.caches import Caches
from wisp_operator.cluster.observation.polling import Poller
from wisp_operator.cluster.observation.watchdog import CacheWatchdog
from wisp_operator.cluster.reconcile.fitting import FitChecker
from wisp_operator.cluster.reconcile.reconciler import Dependencies, Reconciler
from wisp_operator.cluster.workqueue import WorkQueue
from wisp_operator.core.access.tokens import TokenKeys
from wisp_operator.core.demand import DemandAggregator
from wisp_operator.core.wake_spans import WakeSpans

log = logging.getLogger(__name__)

CRD_RETRY_S = 2.0


class Replica:
    """Every part of one replica."""

    def __init__(self, config: OperatorConfig) -> None:
        """Wire the parts; nothing is sent yet.

        Raises:
            ApiError: there are no credentials.
            TokenKeysInvalid: the keys of tokens cannot be read.
        """
        self.config = config
        self.metrics = Metrics()
        self.caches = Caches()
        self.demand = DemandAggregator()
        self.queue = WorkQueue(self.metrics)
        self.api = Api(self.metrics)
        self.leader = Leader(self.api, config, self.metrics, self._on_started_leading)
        self.writer = ClusterWriter(self.api, self.metrics, lambda: self.leader.remaining_s)
        self.tokens = TokenKeys(config.pod_token_keys)
        self.poller = Poller(self._enqueue, self.tokens.of_pods)
        self.fit_checker = FitChecker(config.build.hub_endpoint, self._enqueue)
        self.watchdog = CacheWatchdog(self.api, self.caches, self.queue, config.watch_namespaces)
        self.wakes = WakeSpans(open_tracer(trace_endpoint(config), "wisp-operator"))
        self._reconciler: Reconciler | None = None

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, or until a part ends that must not.

        Raises:
            ApiError: the API server cannot be reached at all.
        """
        stop = asyncio.Event()
        _stop_on_signals(stop)
        endpoints = self._endpoints()
        await endpoints.start(self.config.host, self.config.port)
        log.info("%s listens on port %d", self.config.identity, self.config.port)
        try:
            optional = await self._discover(stop)
            self._reconciler = Reconciler(self._dependencies(optional))
            await self._run_until(stop, self._parts(optional, stop))
        finally:
            await endpoints.close()
            await self.api.close()
            self.wakes.close()

    def _parts(self, optional: list[str], stop: asyncio.Event) -> dict[str, Coroutine[Any, Any, None]]:
        return {
            "election": self.leader.run(),
            "queue": self.queue.run(self._reconcile, self.config.workers),
            "poller": self.poller.run(),
            "watchdog": self.watchdog.run(),
            "watches": self._watch(optional, stop),
        }

    async def _watch(self, optional: list[str], stop: asyncio.Event) -> None:
        """Run kopf until it is cancelled."""
        namespaces = self.config.watch_namespaces
        kinds = watches.kinds(optional, is_clusterwide=not namespaces)
        tasks = await kopf.spawn_tasks(
            registry=watches.registry(self.caches, kinds, self._enqueue, self._enqueue_all),
            settings=watches.settings(),
            clusterwide=not namespaces,
            namespaces=namespaces,
            standalone=True,
        )
        _stop_on_signals(stop)  # kopf has just taken them for itself
        await kopf.run_tasks(tasks, ignored=asyncio.all_tasks())

    async def _run_until(self, stop: asyncio.Event, parts: dict[str, Coroutine[Any, Any, None]]) -> None:
        tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        waiting = asyncio.create_task(stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, waiting):
                task.cancel()
            await asyncio.gather(*tasks, waiting, return_exceptions=True)
        for task in done - {waiting}:
            log.error("%s ended, so the operator ends", task.get_name())
            task.result()

    async def _discover(self, stop: asyncio.Event) -> list[str]:
        """Wait for our CRD, and find which optional kinds the cluster has."""
        while not await self._serves(API_VERSION, PLURAL):
            log.warning(
                "the cluster has no %s of %s yet; apply crds/inferencemodels.yaml", PLURAL, API_VERSION
            )
            await asyncio.wait([asyncio.create_task(stop.wait())], timeout=CRD_RETRY_S)
            if stop.is_set():
                return []
        optional = [kind for kind in KINDS.values() if kind.is_optional]
        return [kind.name for kind in optional if await self._serves(kind.version, kind.plural)]

    async def _serves(self, version: str, plural: str) -> bool:
        try:
            resources = await self.api.request("GET", f"/apis/{version}", verb="discover")
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return any(resource["name"] == plural for resource in resources.get("resources", ()))

    def _dependencies(self, optional: list[str]) -> Dependencies:
        return Dependencies(
            caches=self.caches,
            writer=self.writer,
            demand=self.demand,
            fit_checker=self.fit_checker,
            poller=self.poller,
            metrics=self.metrics,
            config=self.config,
            optional_kinds=optional,
            leader_since=lambda: self.leader.since,
            tokens=self.tokens,
            wakes=self.wakes,
        )

    def _endpoints(self) -> Endpoints:
        self.metrics.gauge("is_leader", lambda: float(self.leader.is_leader))
        self.metrics.gauge("models", lambda: float(len(self.caches.models())))
        self.metrics.gauge("queue_length", lambda: float(len(self.queue)))
        return Endpoints(
            demand=self.demand,
            tokens=self.tokens,
            leader=self.leader,
            metrics=self.metrics,
            on_demand=self._on_demand,
            liveness_problem=self.watchdog.liveness_problem,
            readiness_problem=self.watchdog.readiness_problem,
        )

    def _enqueue(self, key: str) -> None:
        if self._may_enqueue:
            self.queue.add(key)

    @property
    def _may_enqueue(self) -> bool:
        return self.leader.is_leader and self.caches.is_filled

    def _on_demand(self, key: str) -> None:
        """Reconcile a model with demand; a name of no model costs nothing."""
        if self.caches.model(key) is not None and self._may_enqueue:
            self.queue.add_asked(key)

    def _on_started_leading(self) -> None:
        if self._reconciler is not None:
            self._reconciler.reset()
        self._enqueue_all()

    def _enqueue_all(self) -> None:
        for key in self.caches.models():
            self._enqueue(key)

    async def _reconcile(self, key: str) -> float | None:
        """Reconcile a model, as long as this replica leads."""
        if self._reconciler is None or not self.leader.is_leader:
            return None
        return await self._reconciler.reconcile(key)


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
