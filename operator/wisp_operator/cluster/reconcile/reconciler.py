"""Reconcile one model: observe → fit → decide → desired → apply → status.

Level-based and idempotent: everything is read anew from the caches, so it does not matter which event led
here or how many were missed. Manifests are built in ``desired``, decisions made in ``core``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wisp_operator.api import InferenceModel, parse
from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.access.writer import ClusterWriter
from wisp_operator.cluster.config import OperatorConfig
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.cluster.observation.caches import Caches
from wisp_operator.cluster.observation.history import ClusterHistory
from wisp_operator.cluster.observation.nodes import devices, eligible, host_names, pin_to_products
from wisp_operator.cluster.observation.pods import Template, address_of, prefetch_of, ready_at
from wisp_operator.cluster.observation.polling import Poller
from wisp_operator.cluster.reconcile.applying import Applier
from wisp_operator.cluster.reconcile.fitting import FitChecker
from wisp_operator.cluster.reconcile.late_endpoints import LateEndpoints
from wisp_operator.cluster.reconcile.model_names import ModelNames
from wisp_operator.cluster.reconcile.ownership import is_pod_of, owned
from wisp_operator.cluster.reconcile.pod_requests import mark_idle_first, record_mounts
from wisp_operator.cluster.reconcile.refusal import without_refused
from wisp_operator.cluster.reconcile.reporting import Reporter
from wisp_operator.core import autoscale
from wisp_operator.core.access.tokens import TokenKeys
from wisp_operator.core.autoscale import Decision
from wisp_operator.core.demand import DemandAggregator
from wisp_operator.core.observation import Observation
from wisp_operator.core.wake_spans import WakeSpans
from wisp_operator.desired.children import BuildContext, children
from wisp_operator.desired.deployment import deployment
from wisp_operator.desired.labels import RUNTIME_PORT
from wisp_operator.errors import InvalidModel, WispError

log = logging.getLogger(__name__)

ACTIVE_REQUEUE_S = 1.0
UNNAMED_REQUEUE_S = 30.0
LEADERSHIP_GRACE_S = 15.0
EXPLICIT_REASONS = ("Suspended", "DoesNotFit", "ModelUnsupported", "Manual")
BACKOFF_REASONS = ("WaitingForFirstReady", "CrashBackOff")

Pod = Mapping[str, Any]


@dataclass(frozen=True)
class Dependencies:
    """Dependencies of a reconcile, the same for every model."""

    caches: Caches
    writer: ClusterWriter
    demand: DemandAggregator
    fit_checker: FitChecker
    poller: Poller
    metrics: Metrics
    config: OperatorConfig
    optional_kinds: Collection[str]
    leader_since: Callable[[], float]
    tokens: TokenKeys
    wakes: WakeSpans = field(default_factory=WakeSpans)


class Reconciler:
    """Reconciles models, and keeps of each the history that outlives its pods."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._applier = Applier(dependencies.caches, dependencies.writer)
        self._late_endpoints = LateEndpoints(dependencies.caches, dependencies.writer, dependencies.metrics)
        self._reporter = Reporter(dependencies.writer, dependencies.config.identity, dependencies.wakes)
        self._histories: dict[str, ClusterHistory] = {}
        self._names = ModelNames(dependencies.caches, dependencies.config.policy)

    def reset(self) -> None:
        """Begin anew from the statuses in the cluster, as a new leader must."""
        self._histories.clear()
        self._dependencies.wakes.clear()
        self._names = ModelNames(self._dependencies.caches, self._dependencies.config.policy)

    async def reconcile(self, key: str) -> float | None:
        """Bring one model to the state that its manifest and its demand ask for.

        Returns:
            Seconds until the next reconcile without an event; None if an event will cause it.

        Raises:
            ApiError, NotLeading: a write failed; what was done so far is done.
        """
        body = self._dependencies.caches.model(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._remove(key)
            return None
        try:
            model = parse(body)
        except InvalidModel as error:
            await self._reporter.report_invalid(body, error)
            return None
        try:
            if refusal := self._dependencies.config.policy.refusal(model):
                return await self._refuse(model, body, refusal)
            return await self._reconcile(model, body, time.time())
        except ApiError as error:
            if not error.is_namespace_ending:
                raise
            return None
        except WispError:
            raise
        except Exception as error:
            await self._reporter.report_failure(body, self._histories.get(key), error)
            raise

    async def _reconcile(self, model: InferenceModel, body: Mapping[str, Any], now: float) -> float | None:
        pods = [pod for pod in self._dependencies.caches.pods(model.key) if is_pod_of(pod, model)]
        history = self._history(model, body, pods, now)
        nodes = eligible(model.spec, self._dependencies.caches.nodes())
        verdict = self._dependencies.fit_checker.verdict(model, devices(model.spec, nodes))
        if verdict is None:
            return await self._reporter.report_unchecked(body, now)
        history.fit = verdict.report
        await record_mounts(self._dependencies.writer, history, pods, now)
        deployments = [self._dependencies.caches.deployment(model.namespace, model.name)]
        observation = self._observe(history, model, pods, next(owned(deployments, model), None), now)
        observation = replace(observation, grant=self._names.grant(model, body, observation.served_names))
        decision = self._decide(model, observation, now)
        history.pods_before = len(observation.live) if decision.why == "Replace" else 0
        pinned = pin_to_products(model, verdict.products) if verdict.products else model

        def build(replicas: int) -> list[dict[str, Any]]:
            context = self._build_context(model.key, body, replicas, nodes)
            return children(pinned, context, self._dependencies.config.build)

        if self._dependencies.config.marks_idle_pods:
            await mark_idle_first(self._dependencies.writer, pods, observation.live, decision.replicas)
        replicas, blocked = await self._applier.apply(model, decision.replicas, build)
        decision = replace(decision, replicas=replicas)
        self._record_wake(history, model, observation, decision, now)
        observation = self._with_applied(observation, model, pods, build(replicas))
        observation = replace(observation, blocked=blocked)
        demand = self._dependencies.demand.total(model.key, now)
        await self._late_endpoints.hasten(model, observation, demand, now)
        await self._reporter.report(model, history, observation, decision, now)
        is_active = observation.pods or observation.demand.waiting or decision.replicas or decision.retry_at
        if is_active:
            return ACTIVE_REQUEUE_S
        unnamed = observation.grant is not None and observation.grant.refusal
        return self._applier.retry_s(model.key) or (UNNAMED_REQUEUE_S if unnamed else None)

    def _history(
        self, model: InferenceModel, body: Mapping[str, Any], pods: Sequence[Pod], now: float
    ) -> ClusterHistory:
        history = self._histories.get(model.key)
        if history is None or history.uid != model.uid:
            history = self._histories[model.key] = _restored(model, body.get("status", {}), pods, now)
        history.reset_if_changed(model)
        return history

    def _observe(
        self,
        history: ClusterHistory,
        model: InferenceModel,
        pods: Sequence[Pod],
        deployment: Mapping[str, Any] | None,
        now: float,
    ) -> Observation:
        running = {
            pod["metadata"]["name"]: (address_of(pod, RUNTIME_PORT), ready_at(pod) is not None)
            for pod in pods
        }
        self._dependencies.poller.set_pods(model.key, running)
        demand = self._dependencies.demand.total(model.key, now)
        states = self._dependencies.poller.states(model.key)
        observation = history.observe(model, pods, states, demand, now, deployment)
        base = self._dependencies.config.gateway_url.rstrip("/") or "http://"
        url = f"{base}/{model.key}/v1" if self._dependencies.config.gateway_url else _service_url(model)
        return replace(observation, url=url)

    def _with_applied(
        self,
        observation: Observation,
        model: InferenceModel,
        pods: Sequence[Pod],
        wanted: Sequence[Mapping[str, Any]],
    ) -> Observation:
        """Compare with what was applied: pods and Jobs of what was desired before it prove nothing now."""
        caches = self._dependencies.caches
        deployments = [caches.deployment(model.namespace, model.name)]
        template = Template.of(next(owned(deployments, model), None))
        jobs = owned((caches.child(manifest) for manifest in wanted if manifest["kind"] == "Job"), model)
        observed = template.compared(observation.pods, pods)
        return replace(observation, pods=observed, prefetch=prefetch_of(jobs))

    def _decide(self, model: InferenceModel, observation: Observation, now: float) -> Decision:
        """Decide, but let a new leader, which has no demand reports yet, remove no pods.

        To keep pods means to keep the Deployment's number: during a rolling update there are more pods than
        that, and to ask for those would make yet more.
        """
        decision = autoscale.decide(model.spec, observation, now)
        is_new = now - self._dependencies.leader_since() < LEADERSHIP_GRACE_S
        removes_pods = decision.replicas < len(observation.live) and decision.why not in EXPLICIT_REASONS
        if is_new and removes_pods:
            decision = replace(decision, replicas=len(observation.live))
        elif decision.why not in BACKOFF_REASONS:
            return decision
        return replace(decision, replicas=min(decision.replicas, self._applier.replicas(model)))

    def _record_wake(
        self,
        history: ClusterHistory,
        model: InferenceModel,
        observation: Observation,
        decision: Decision,
        now: float,
    ) -> None:
        if history.record_wake(bool(observation.live), decision.replicas, now):
            self._dependencies.metrics.count("wakes", why=decision.why)
            log.info("%s: wakes (%s, %d waiting)", model.key, decision.why, observation.demand.waiting)

    def _build_context(
        self, key: str, body: Mapping[str, Any], replicas: int, nodes: Sequence[Mapping[str, Any]]
    ) -> BuildContext:
        return BuildContext(
            replicas=replicas,
            annotations=body["metadata"].get("annotations", {}),
            nodes=host_names(nodes),
            optional_kinds=self._dependencies.optional_kinds,
            system_namespace=self._dependencies.config.namespace,
            token_digests=self._dependencies.tokens.digests(key),
        )

    async def _refuse(self, model: InferenceModel, body: Mapping[str, Any], refusal: str) -> float | None:
        """End the pods of a model that is not allowed, if it has any, and report why."""
        self._end_observation(model.key)
        self._names.forget(model.key)
        deployments = [self._dependencies.caches.deployment(model.namespace, model.name)]
        idle = deployment(without_refused(model), 0, self._dependencies.config.build)
        ended = [idle for _ in owned(deployments, model)]
        _, blocked = await self._applier.apply(model, 0, lambda _: ended)
        kept = [f"Its pods could not be ended: {child.message}" for child in blocked]
        await self._reporter.report_refusal(model, body.get("status", {}), " ".join([refusal, *kept]))
        return self._applier.retry_s(model.key)

    def _remove(self, key: str) -> None:
        self._end_observation(key)
        self._applier.forget(key)
        self._late_endpoints.forget(key)
        self._names.forget(key)

    def _end_observation(self, key: str) -> None:
        self._histories.pop(key, None)
        self._dependencies.wakes.forget(key)
        self._dependencies.fit_checker.forget(key)
        self._dependencies.poller.set_pods(key, {})


def _restored(
    model: InferenceModel, written: Mapping[str, Any], pods: Sequence[Pod], now: float
) -> ClusterHistory:
    try:
        return ClusterHistory.restore(model, written, pods, now)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning("%s: its status cannot be read (%r); its history begins anew", model.key, error)
        return ClusterHistory(uid=model.uid, generation=model.generation)


def _service_url(model: InferenceModel) -> str:
    return f"http://{model.name}.{model.namespace}.svc:{RUNTIME_PORT}/v1"
