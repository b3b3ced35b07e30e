"""One look at one model: observe → fit → decide → desired → apply → status.

Level-based and idempotent: everything is read anew from the caches, so it does not matter which event led
here or how many were missed. Nothing here builds a manifest; nothing it calls decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wisp_operator.api import InferenceModel, parse
from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.access.kinds import KINDS
from wisp_operator.cluster.access.writer import Cluster
from wisp_operator.cluster.config import OperatorConfig
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.cluster.observation.caches import Caches, address
from wisp_operator.cluster.observation.failures import container_status, refusal, volume_failure
from wisp_operator.cluster.observation.history import Memory
from wisp_operator.cluster.observation.nodes import devices, eligible, host_names, narrowed
from wisp_operator.cluster.observation.pods import address_of, created_at, prefetch_of, ready_at
from wisp_operator.cluster.observation.polling import Poller
from wisp_operator.cluster.reconcile import drift
from wisp_operator.cluster.reconcile.events import event, transitions
from wisp_operator.cluster.reconcile.fitting import Fitter
from wisp_operator.cluster.reconcile.status_writes import is_due, merged
from wisp_operator.core import autoscale, status
from wisp_operator.core.autoscale import Decision
from wisp_operator.core.demand import DemandBook
from wisp_operator.core.observation import Facts
from wisp_operator.desired.children import Surroundings, children
from wisp_operator.desired.labels import RUNTIME_PORT
from wisp_operator.errors import InvalidModel

log = logging.getLogger(__name__)

AWAKE_S = 1.0
TAKEOVER_S = 15.0
MOUNT_PATIENCE_S = 8.0
TOLD = ("Suspended", "DoesNotFit", "ModelUnsupported", "Manual")
HELD = ("WaitingForFirstReady", "CrashBackOff")
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

Pod = Mapping[str, Any]


@dataclass(frozen=True)
class Tools:
    """What a look needs: the same for every model."""

    caches: Caches
    cluster: Cluster
    book: DemandBook
    fitter: Fitter
    poller: Poller
    metrics: Metrics
    config: OperatorConfig
    optional_kinds: Collection[str]
    leads_since: Callable[[], float]


class Reconciler:
    """Looks at models, and remembers of each what outlives its pods."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._memories: dict[str, Memory] = {}

    def forget_all(self) -> None:
        """Begin anew from what is written in the cluster, as a new leader must."""
        self._memories.clear()

    async def reconcile(self, key: str) -> float | None:
        """Make one model be as its manifest and its callers want it.

        Returns:
            Seconds until it must be looked at again without an event; None if an event will tell.

        Raises:
            ApiError, NotLeading: a write failed; what was done so far is done.
        """
        body = self._tools.caches.model(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._forget(key)
            return None
        try:
            model = parse(body)
        except InvalidModel as error:
            await self._refuse(body, error)
            return None
        try:
            return await self._look(model, body, time.time())
        except ApiError as error:
            if not error.is_namespace_ending:
                raise
            return None

    async def _look(self, model: InferenceModel, body: Mapping[str, Any], now: float) -> float | None:
        pods = self._tools.caches.pods(model.key)
        memory = self._memory(model, body, pods, now)
        nodes = eligible(model.spec.gpu, self._tools.caches.nodes())
        verdict = self._tools.fitter.verdict(model, devices(model.spec.gpu, nodes))
        if verdict is None:
            return None
        memory.fit = verdict.report
        await self._note_mounts(memory, pods, now)
        memory.note_refusal(refusal(self._tools.caches.one("Deployment", model.key), now))
        facts = self._observe(memory, model, pods, now)
        decision = self._decide(model, facts, now)
        self._note_wake(memory, model, facts, decision, now)
        placed = narrowed(model, verdict.products) if verdict.products else model
        around = self._surroundings(body, decision, host_names(nodes))
        await self._prefer_idle(pods, facts, decision)
        await self._apply(model.key, children(placed, around, self._tools.config.build))
        await self._report(model, memory, facts, decision, now)
        return AWAKE_S if facts.pods or facts.demand.waiting or decision.replicas else None

    def _memory(
        self, model: InferenceModel, body: Mapping[str, Any], pods: Sequence[Pod], now: float
    ) -> Memory:
        memory = self._memories.get(model.key)
        if memory is None or memory.uid != model.uid:
            memory = self._memories[model.key] = Memory.recalled(model, body.get("status", {}), pods, now)
        memory.respect(model)
        return memory

    def _observe(self, memory: Memory, model: InferenceModel, pods: Sequence[Pod], now: float) -> Facts:
        running = {
            pod["metadata"]["name"]: (address_of(pod, RUNTIME_PORT), ready_at(pod) is not None)
            for pod in pods
        }
        self._tools.poller.watch(model.key, running)
        demand = self._tools.book.total(model.key, now)
        facts = memory.take(model, pods, self._tools.poller.states(model.key), demand, now)
        base = self._tools.config.gateway_url.rstrip("/") or "http://"
        url = f"{base}/{model.key}/v1" if self._tools.config.gateway_url else _service_url(model)
        jobs = self._tools.caches.children("Job", model.key)
        return replace(facts, url=url, prefetch=prefetch_of(jobs))

    def _decide(self, model: InferenceModel, facts: Facts, now: float) -> Decision:
        """Decide, but take nothing away on the word of a leader who has not listened yet.

        To hold pods means to hold what the Deployment asks for: during a rolling update there are more pods
        than that, and to ask for those would make yet more.
        """
        decision = autoscale.decide(model.spec, facts, now)
        is_new = now - self._tools.leads_since() < TAKEOVER_S
        takes_away = decision.replicas < len(facts.live) and decision.why not in TOLD
        if is_new and takes_away:
            decision = replace(decision, replicas=len(facts.live))
        elif decision.why not in HELD:
            return decision
        asked = self._tools.caches.replicas(model.namespace, model.name)
        return replace(decision, replicas=min(decision.replicas, asked))

    def _note_wake(
        self, memory: Memory, model: InferenceModel, facts: Facts, decision: Decision, now: float
    ) -> None:
        if memory.note_wake(bool(facts.live), decision.replicas, now):
            self._tools.metrics.count("wakes", why=decision.why)
            log.info("%s: wakes (%s, %d waiting)", model.key, decision.why, facts.demand.waiting)

    def _surroundings(
        self, body: Mapping[str, Any], decision: Decision, hosts: Sequence[str]
    ) -> Surroundings:
        return Surroundings(
            replicas=decision.replicas,
            annotations=body["metadata"].get("annotations", {}),
            nodes=hosts,
            optional_kinds=self._tools.optional_kinds,
            system_namespace=self._tools.config.namespace,
        )

    async def _note_mounts(self, memory: Memory, pods: Sequence[Pod], now: float) -> None:
        """Ask why a pod with a node does not start: a volume that fails shows in events alone."""
        for pod in pods:
            waiting = container_status(pod).get("state", {}).get("waiting", {}).get("reason")
            if waiting != "ContainerCreating" or now - created_at(pod) < MOUNT_PATIENCE_S:
                continue
            metadata = pod["metadata"]
            if memory.is_due_to_ask(metadata["name"], now):
                told = await self._tools.cluster.warnings_about(metadata["namespace"], metadata["name"])
                memory.note_mount(metadata["name"], volume_failure(told, now))

    async def _prefer_idle(self, pods: Sequence[Pod], facts: Facts, decision: Decision) -> None:
        """Before pods go, tell the cluster which are the least loaded: those it removes first."""
        if not 0 < decision.replicas < len(facts.live):
            return
        costs = autoscale.deletion_costs(facts.live)
        for pod in pods:
            metadata = pod["metadata"]
            cost = costs.get(metadata["name"])
            if cost is not None and metadata.get("annotations", {}).get(DELETION_COST) != str(cost):
                change = {DELETION_COST: str(cost)}
                await self._tools.cluster.annotate("Pod", metadata["namespace"], metadata["name"], change)

    async def _apply(self, key: str, wanted: Sequence[Mapping[str, Any]]) -> None:
        for manifest in map(drift.stamped, wanted):
            if drift.differs(manifest, self._tools.caches.child(manifest)):
                self._tools.caches.note(await self._tools.cluster.apply(manifest))
        kept = {address(manifest) for manifest in wanted}
        for kind in (kind.name for kind in KINDS.values() if kind.is_pruned):
            for child in list(self._tools.caches.children(kind, key)):
                if address(child) not in kept and not child["metadata"].get("deletionTimestamp"):
                    await self._tools.cluster.delete(child)

    async def _report(
        self, model: InferenceModel, memory: Memory, facts: Facts, decision: Decision, now: float
    ) -> None:
        found = status.summarise(model, facts, decision, now, memory.conditions)
        document = merged(found.to_dict(), memory.written)
        if is_due(document, memory.written, now - memory.written_at):
            await self._tools.cluster.write_status(model.name, model.namespace, document)
            memory.written, memory.written_at = document, now
        notes = transitions(memory.conditions, found.conditions)
        memory.conditions = found.conditions
        for note in notes:
            log.log(
                logging.WARNING if note.type == "Warning" else logging.INFO,
                *("%s: %s: %s", model.key, note.reason, note.message),
            )
            await self._tools.cluster.emit(event(model, note, now, self._tools.config.identity))

    async def _refuse(self, body: Mapping[str, Any], error: InvalidModel) -> None:
        """Say in status that this version of the operator cannot read the spec; leave the children alone."""
        metadata = body["metadata"]
        written = body.get("status", {})
        if written.get("observedGeneration") == metadata["generation"] and written.get("state") == "Failed":
            return
        found = status.refused(error.problems, metadata["generation"], time.time())
        await self._tools.cluster.write_status(metadata["name"], metadata["namespace"], found.to_dict())

    def _forget(self, key: str) -> None:
        self._memories.pop(key, None)
        self._tools.fitter.forget(key)
        self._tools.poller.watch(key, {})


def _service_url(model: InferenceModel) -> str:
    return f"http://{model.name}.{model.namespace}.svc/v1"
