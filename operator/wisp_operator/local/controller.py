"""The reconcile loop of one machine: fit → decide → desired → apply → observe → status, for every model.

Level-based: each round looks at everything anew, so it does not matter which event woke it or how many
were missed. The rules are those of a cluster (:mod:`wisp_operator.core.autoscale`, ``desired``, ``status``);
only :mod:`.processes.cluster` knows that pods are processes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.core import autoscale, status
from wisp_operator.core.demand import DemandBook
from wisp_operator.core.fit import FitReport
from wisp_operator.core.observation import Facts, Failure
from wisp_operator.desired.deployment import deployment
from wisp_operator.desired.settings import BuildSettings
from wisp_operator.errors import WispError
from wisp_operator.local import pod_template
from wisp_operator.local.gateway import directory
from wisp_operator.local.history import Memory
from wisp_operator.local.machine.path_preflight import what_is_wrong
from wisp_operator.local.processes.cluster import LocalCluster
from wisp_operator.local.processes.exit_log import Deaths

log = logging.getLogger(__name__)

ROUND_S = 1.0
FIT_PATIENCE_S = 3.0  # a hub that answers later than this is heard later
LOOK_AGAIN_S = 2.0  # at a folder that could not be read

Ask = Callable[[InferenceModel], FitReport]
Publish = Callable[[Sequence[dict[str, Any]]], None]


class KeysMissing(WispError):
    """A model is protected by keys that this machine was not given."""


class Controller:
    """Keeps every model of this machine as its manifest and its callers want it.

    Attributes:
        statuses: the last status of every model, by key.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        *,
        fit: Ask,
        publish: Publish,
        settings: BuildSettings,
        api_keys: Path | None = None,
        are_logs_kept: bool = False,
    ) -> None:
        self.statuses: dict[str, status.Status] = {}
        self._models: dict[str, InferenceModel] = {}
        self._memories: dict[str, Memory] = {}
        self._book = DemandBook()
        self._wake = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()
        self._wrong: dict[str, Failure] = {}  # models of this machine whose folder cannot be read
        self._asked_at: dict[str, float] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        self._complaints: dict[str, str] = {}
        self._deaths = Deaths(are_logs_kept=are_logs_kept)
        self._cluster, self._ask, self._publish = cluster, fit, publish
        self._settings, self._api_keys = settings, api_keys

    @property
    def models(self) -> list[InferenceModel]:
        """The models being served."""
        return list(self._models.values())

    def wake(self) -> None:
        """Look again at once instead of at the next round."""
        self._wake.set()

    def hear(self, report: Mapping[str, Any]) -> None:
        """Take a gateway's demand; ValueError if it is not one."""
        self._book.record(report, time.time())
        self.wake()

    async def set_models(self, models: Sequence[InferenceModel]) -> None:
        """Serve exactly these models from now on, asking of every new or changed one whether it fits.

        Raises:
            NotLocal: one of them needs what only a cluster has; then nothing changes.
            KeysMissing: one of them asks callers for a key, and there is no file of keys.
        """
        for model in models:
            self._require_local(model)
        wanted = {model.key: model for model in models}
        changed = [model for key, model in wanted.items() if self._models.get(key) != model]
        for model in changed:
            memory = self._memories.setdefault(model.key, Memory(created=time.time()))
            memory.crashes, memory.last_failure = 0, None
        asked = {self._ask_soon(model) for model in changed}
        if asked:
            await asyncio.wait(asked, timeout=FIT_PATIENCE_S)
        gone = self._models.keys() - wanted.keys()
        self._models = wanted  # at once with what follows: a look in between must find both or neither
        for key in gone:
            self._forget(key)
        self.wake()

    async def run(self) -> None:
        """Reconcile after every event, and every second, until cancelled."""
        while True:
            self._wake.clear()
            self.reconcile_now()
            with suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that meets the event.
                async with asyncio.timeout(ROUND_S):
                    await self._wake.wait()

    def reconcile_now(self) -> None:
        """Look at every model once, act, and publish what was found."""
        now = time.time()
        for model in self._models.values():
            self._reconcile_guarded(model, now)
        try:
            self._publish([self._entries[key] for key in self._models if key in self._entries])
        except OSError as error:
            log.error("cannot tell the gateway what changed (%s); free some space, it is tried again", error)

    def _reconcile_guarded(self, model: InferenceModel, now: float) -> None:
        """Look at one model; what goes wrong with it is said once and leaves the others alone."""
        try:
            self._entries[model.key] = self._reconcile(model, now)
            self._complaints.pop(model.key, None)
        except Exception as error:
            complaint = f"{type(error).__name__}: {error}"
            if self._complaints.get(model.key) != complaint:
                self._complaints[model.key] = complaint
                log.error(
                    "%s stays as it is, since looking at it failed (%s); it is tried again every second. "
                    "Change its manifest, or restart wisp up; if neither helps, report it with this log",
                    *(model.key, complaint),
                    exc_info=None if isinstance(error, WispError) else error,
                )

    def _reconcile(self, model: InferenceModel, now: float) -> dict[str, Any]:
        memory = self._memories[model.key]
        demand = self._book.total(model.key, now)
        self._deaths.tell(model.key, self._cluster.pods(model.key))
        facts = memory.take(model, self._cluster.pods(model.key), demand, now)
        facts, decision = self._decide(model, self._deaths.placed(model.key, facts), now)
        self._cluster.apply(model.key, self._deployment(model, decision.replicas))
        pods = self._cluster.pods(model.key)
        facts = memory.again(facts, pods)
        found = status.summarise(model, facts, decision, now, memory.conditions)
        memory.conditions = found.conditions
        self._announce(model, found)
        progress = status.progress(facts)
        return directory.entry(model, found, progress, pods, created=memory.created, api_keys=self._api_keys)

    def _decide(self, model: InferenceModel, facts: Facts, now: float) -> tuple[Facts, autoscale.Decision]:
        """Decide on the facts; a model whose folder cannot be read is not tried until it can be."""
        wrong = self._wrong.get(model.key)
        if wrong is None or facts.live:
            return facts, autoscale.decide(model.spec, facts, now)
        if now - self._asked_at[model.key] >= LOOK_AGAIN_S:
            self._ask_soon(model)
        failed = replace(facts, last_failure=wrong, crashes=0, fit=None)
        return failed, autoscale.Decision(0, "CrashBackOff")

    def _ask_soon(self, model: InferenceModel) -> asyncio.Task[None]:
        self._asked_at[model.key] = time.time()
        task = asyncio.create_task(self._ask_fit(model), name=f"fit of {model.key}")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

    async def _ask_fit(self, model: InferenceModel) -> None:
        wrong = await asyncio.to_thread(what_is_wrong, model)
        report = await asyncio.to_thread(self._ask, model)
        if memory := self._memories.get(model.key):
            memory.fit = report
            if wrong:
                self._wrong[model.key] = wrong
            else:
                self._wrong.pop(model.key, None)
        self.wake()

    def _forget(self, key: str) -> None:
        """Stop a model that is no longer wanted, and drop what is known of it."""
        self._cluster.delete(key)
        for known in (self._memories, self.statuses, self._wrong, self._asked_at, self._entries):
            known.pop(key, None)

    def _deployment(self, model: InferenceModel, replicas: int) -> dict[str, Any]:
        return deployment(_on_this_machine(model), replicas, self._settings)

    def _require_local(self, model: InferenceModel) -> None:
        pod_template.read(self._deployment(model, 0))
        if model.spec.access.api_key_secret_ref and self._api_keys is None:
            raise KeysMissing(
                f"{model.key} lets in only callers with a key (spec.access.apiKeySecretRef), and "
                "a machine has no Secrets. Give a file with one key a line: --api-keys FILE."
            )

    def _announce(self, model: InferenceModel, found: status.Status) -> None:
        """Log transitions only."""
        before = self.statuses.get(model.key)
        self.statuses[model.key] = found
        if before is None or (before.state, before.reason) != (found.state, found.reason):
            level = logging.WARNING if found.state == "Failed" else logging.INFO
            log.log(level, "%s: %s (%s) %s", model.key, found.state, found.reason, found.message)


def _on_this_machine(model: InferenceModel) -> InferenceModel:
    """The model with a node-local cache: a machine's downloads are a directory, whatever a cluster has."""
    if model.spec.cache.type != "PVC":
        return model
    return replace(model, spec=replace(model.spec, cache=replace(model.spec.cache, type="NodeLocal")))
