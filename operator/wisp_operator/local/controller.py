"""The reconcile loop of one machine: fit → decide → desired → apply → observe → status, for every model.

Level-based: each round reads everything anew, so it does not matter which event caused it or how many
were missed. The rules are those of a cluster (:mod:`wisp_operator.core.autoscale`, ``desired``, ``status``);
that pods are processes is confined to :mod:`.processes.cluster`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from wisp_names.bare_names import BareNames, Claim
from wisp_operator.api import InferenceModel
from wisp_operator.core import autoscale, status
from wisp_operator.core.access.tokens import TokenKeys
from wisp_operator.core.demand import DemandAggregator
from wisp_operator.core.fit.verdict import FitResult
from wisp_operator.core.naming.grants import grant, leaving_names
from wisp_operator.core.observation import Demand, Failure, Observation
from wisp_operator.core.wake_spans import WakeSpans
from wisp_operator.desired.deployment import deployment
from wisp_operator.desired.settings import BuildSettings
from wisp_operator.errors import WispError
from wisp_operator.local import pod_template
from wisp_operator.local.admission import require_keys, require_own_names
from wisp_operator.local.gateway import directory
from wisp_operator.local.history import LocalHistory
from wisp_operator.local.ignored_fields import differences, on_this_machine
from wisp_operator.local.machine.path_preflight import Recheck, next_check, path_failure
from wisp_operator.local.processes.cluster import LocalCluster
from wisp_operator.local.processes.exit_log import ExitLog
from wisp_operator.local.stops import Stops

log = logging.getLogger(__name__)

PERIOD_S = 1.0
FIT_WAIT_S = 3.0  # a slower hub's report is used when it comes
ASKED_S = 2.0  # time since its last request for which a model counts as asked for

CheckFit = Callable[[InferenceModel], Awaitable[FitResult]]
Publish = Callable[[Sequence[dict[str, Any]]], None]


class Controller:
    """Keeps every model of this machine as its manifest and its demand ask for.

    Attributes:
        statuses: last status of every model, by key.
        publish_failure: error of the last write of the gateway's directory, or None.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        *,
        fit: CheckFit,
        publish: Publish,
        settings: BuildSettings,
        tokens: TokenKeys,
        api_keys: Path | None = None,
        are_logs_kept: bool = False,
        wakes: WakeSpans | None = None,
    ) -> None:
        self.statuses: dict[str, status.Status] = {}
        self.publish_failure: OSError | None = None
        self._models: dict[str, InferenceModel] = {}
        self._histories: dict[str, LocalHistory] = {}
        self._names = BareNames()
        self._demand = DemandAggregator()
        self._wakeup = asyncio.Event()
        self._fit_tasks: dict[str, asyncio.Task[None]] = {}
        self._path_failures: dict[str, Failure] = {}  # models of this machine whose folder cannot be read
        self._rechecks: dict[str, Recheck] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        self._errors: dict[str, str] = {}
        self._stops = Stops()
        self._exit_log = ExitLog(are_logs_kept=are_logs_kept)
        self._cluster, self._check_fit, self._publish = cluster, fit, publish
        self._settings, self._tokens, self._api_keys = settings, tokens, api_keys
        self._wakes = wakes or WakeSpans()

    @property
    def models(self) -> list[InferenceModel]:
        """The models being served."""
        return list(self._models.values())

    def wake(self) -> None:
        """Reconcile at once instead of at the next round."""
        self._wakeup.set()

    def record_demand(self, report: Mapping[str, Any]) -> None:
        """Record a gateway's demand report; ValueError if it is not one."""
        now = time.time()
        self._stops.record(self._demand.record(report, now), now)
        self.wake()

    def stop_pods(self, key: str, arrivals: int) -> bool:
        """Stop a model's pods until there are more than ``arrivals`` requests; False if it may not be."""
        model = self._models.get(key)
        if model is None or not directory.can_stop(model):
            return False
        self._stops.add(key, arrivals, time.time())
        log.info("%s: stopped by hand; a request wakes it", key)
        self.wake()
        return True

    async def set_models(self, models: Sequence[InferenceModel]) -> None:
        """Serve exactly these models from now on; check whether every new or changed one fits.

        Raises:
            NotLocal: one of them needs what only a cluster has; then nothing changes.
            KeysMissing: one of them asks callers for a key, and there is no file of keys, or none in it.
            ServedNameTaken: two of a namespace ask for one name, or a served name has the form of another
                model's ``NAMESPACE/NAME``.
        """
        require_own_names(models)
        for model in models:
            pod_template.read(self._deployment(model, 0))
            require_keys(model, self._api_keys)
        wanted = {model.key: model for model in models}
        changed = [model for key, model in wanted.items() if self._models.get(key) != model]
        for model in changed:
            history = self._histories.setdefault(model.key, LocalHistory(created=time.time()))
            history.crashes, history.last_failure = 0, None
            for difference in differences(model):
                log.info("%s: %s", model.key, difference)
        checks = {self._schedule_fit_check(model) for model in changed}
        if checks:
            await asyncio.wait(checks, timeout=FIT_WAIT_S)
        gone = self._models.keys() - wanted.keys()
        self._models = wanted  # at once with what follows: a reconcile in between needs both or neither
        for key in gone:
            self._remove(key)
        self.wake()

    async def run(self) -> None:
        """Reconcile after every event, and every second, until cancelled."""
        while True:
            self._wakeup.clear()
            self.reconcile_now()
            with suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that meets the event.
                async with asyncio.timeout(PERIOD_S):
                    await self._wakeup.wait()

    def reconcile_now(self) -> None:
        """Reconcile every model once, and publish the directory."""
        now = time.time()
        self._names.update(map(self._claim, self._models.values()), time.monotonic())
        for model in self._models.values():
            self._reconcile_guarded(model, now)
        before, self.publish_failure = self.publish_failure, None
        try:
            self._publish([self._entries[key] for key in self._models if key in self._entries])
        except OSError as error:
            self.publish_failure = error
        if self.publish_failure is not None and before is None:
            log.error(
                "cannot tell the gateway what changed (%s); free some space, it is tried again",
                self.publish_failure,
            )
        elif self.publish_failure is None and before is not None:
            log.info("the gateway knows of every change again")

    def _reconcile_guarded(self, model: InferenceModel, now: float) -> None:
        """Reconcile one model; its error is logged once and leaves the others alone."""
        try:
            self._entries[model.key] = self._reconcile(model, now)
            self._errors.pop(model.key, None)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            if self._errors.get(model.key) != message:
                self._errors[model.key] = message
                log.error(
                    "%s stays as it is, since reconciling it failed (%s); it is tried again every second. "
                    "Change its manifest, or restart wisp up; if neither helps, report it with this log",
                    *(model.key, message),
                    exc_info=None if isinstance(error, WispError) else error,
                )

    def _reconcile(self, model: InferenceModel, now: float) -> dict[str, Any]:
        history = self._histories[model.key]
        demand = self._demand.total(model.key, now)
        self._exit_log.log_new(model.key, self._cluster.pods(model.key))
        observation = history.observe(model, self._cluster.pods(model.key), demand, now)
        observation, decision = self._decide(model, self._exit_log.with_log_path(model.key, observation), now)
        if self._stops.holds(model.key, demand, now):
            decision = autoscale.Decision(0, "Idle")
        self._cluster.apply(model.key, self._deployment(model, decision.replicas))
        pods = self._cluster.pods(model.key)
        observation = history.refresh(observation, pods)
        held = grant(self._names, self._claim(model), model.served_name)
        observation = replace(observation, grant=held)
        summary = status.summarise(model, observation, decision, now, history.conditions)
        history.conditions = summary.conditions
        self._wakes.observe(model, observation, summary, decision, now)
        self._log_transition(model, summary)
        progress = status.progress(observation)
        return directory.entry(
            model, summary, progress, pods, created=history.created, api_keys=self._api_keys
        )

    def _claim(self, model: InferenceModel) -> Claim:
        asked = frozenset({model.name, model.served_name})
        before = self.statuses.get(model.key)
        granted, refused = (before.names, before.refused_names) if before else ((), ())
        pods = [pod for pod in self._cluster.pods(model.key) if not pod.is_draining]
        reported = [pod.runtime.model if pod.runtime else None for pod in pods]
        leaving = leaving_names(asked, granted, model.served_name, reported)
        return Claim(
            model.key,
            self._histories[model.key].created,
            asked | leaving,
            frozenset(granted),
            frozenset(refused),
            leaving,
        )

    def _decide(
        self, model: InferenceModel, observation: Observation, now: float
    ) -> tuple[Observation, autoscale.Decision]:
        """Decide on the observation; a model whose folder cannot be read is not tried until it can be."""
        if not observation.live:
            self._recheck(model, observation.demand, now)
        failure = self._path_failures.get(model.key)
        if failure is None or observation.live:
            return observation, autoscale.decide(model.spec, observation, now)
        failed = replace(observation, last_failure=failure, crashes=0, fit=None)
        return failed, autoscale.Decision(0, "CrashBackOff")

    def _recheck(self, model: InferenceModel, demand: Demand, now: float) -> None:
        """Check a model that cannot run again, once due: its files or the free memory may have changed."""
        recheck = self._rechecks.get(model.key)
        is_asked = demand.waiting > 0 or (demand.idle_s is not None and demand.idle_s < ASKED_S)
        if recheck and model.key not in self._fit_tasks and recheck.is_due(now, is_asked=is_asked):
            self._schedule_fit_check(model)

    def _schedule_fit_check(self, model: InferenceModel) -> asyncio.Task[None]:
        """Check a model in the background; a check of its former spec is ended."""
        self._cancel_fit_check(model.key)
        task = asyncio.create_task(self._run_fit_check(model), name=f"fit of {model.key}")
        self._fit_tasks[model.key] = task
        return task

    def _cancel_fit_check(self, key: str) -> None:
        if running := self._fit_tasks.pop(key, None):
            running.cancel()

    async def _run_fit_check(self, model: InferenceModel) -> None:
        began_s = time.monotonic()
        try:
            result = await self._check_fit(model)
        finally:
            if self._fit_tasks.get(model.key) is asyncio.current_task():
                del self._fit_tasks[model.key]
        if history := self._histories.get(model.key):
            history.fit = result.report
            before, took_s = self._rechecks.pop(model.key, None), time.monotonic() - began_s
            self._path_failures.pop(model.key, None)
            if failure := path_failure(model, result):
                self._path_failures[model.key] = failure
            if failure or result.report.verdict == "DoesNotFit":
                self._rechecks[model.key] = next_check(before, time.time(), took_s)
        self.wake()

    def _remove(self, key: str) -> None:
        """Stop a model that is no longer served, and drop its state."""
        self._cluster.delete(key)
        self._wakes.forget(key)
        self._cancel_fit_check(key)
        for known in (self._histories, self.statuses, self._path_failures, self._rechecks, self._entries):
            known.pop(key, None)
        self._stops.forget(key)

    def _deployment(self, model: InferenceModel, replicas: int) -> dict[str, Any]:
        digests = self._tokens.digests(model.key)
        return deployment(on_this_machine(model), replicas, self._settings, digests)

    def _log_transition(self, model: InferenceModel, new: status.Status) -> None:
        """Log transitions only."""
        before = self.statuses.get(model.key)
        self.statuses[model.key] = new
        if before is None or (before.state, before.reason) != (new.state, new.reason):
            level = logging.WARNING if new.state == "Failed" else logging.INFO
            log.log(level, "%s: %s (%s) %s", model.key, new.state, new.reason, new.message)
        named = new.condition("Named")
        if named.status == "False" and (before is None or before.condition("Named").status != "False"):
            log.warning("%s: %s: %s", model.key, named.reason, named.message)
