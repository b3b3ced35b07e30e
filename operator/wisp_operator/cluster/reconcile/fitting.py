"""Fit checks of models, in the background of the reconcile loop; verdicts are cached.

Headers come over the network and may take seconds; a reconcile never waits for them. The model is enqueued
again when its verdict is there. Checks run in child processes, one at a time of a namespace, so that no
tenant's files keep others waiting; a check that has not ended in time is Unknown until it has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from wisp_operator.api import InferenceModel
from wisp_operator.core.fit.process import CheckAborted, run_isolated
from wisp_operator.core.fit.sources import files_of
from wisp_operator.core.fit.verdict import Device, FitReport, check, device_of
from wisp_operator.core.fit.worker import FitJob
from wisp_plan.errors import PlanError

log = logging.getLogger(__name__)

MAX_CONCURRENT = 2  # children at a time: with Limits.memory_bytes of each, within the memory of the pod
ANSWER_TIMEOUT_S = 30.0
RETRY_UNKNOWN_S = 300.0
MAX_RETRY_DOUBLINGS = 4  # doublings for a check ended at its limits: 80 minutes at last


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of a fit check.

    Attributes:
        report: report for ``status.fit``.
        products: GPU products of the cluster on which the model fits, if it does not fit on all of them.
    """

    report: FitReport
    products: tuple[str, ...] = ()


@dataclass
class _Entry:
    """Verdict of a model.

    Attributes:
        question: all that the verdict depends on.
        task: check in progress, if any.
        answered_at: time of the verdict, of the monotonic clock.
        aborted: checks of the question that were ended at their limits.
    """

    question: object
    verdict: Verdict | None = None
    task: asyncio.Task[None] | None = None
    answered_at: float = 0.0
    aborted: int = 0

    @property
    def is_stale(self) -> bool:
        """Whether an unknown verdict is old enough to check again: a hub may have been away."""
        if self.task or self.verdict is None or self.verdict.report.verdict != "Unknown":
            return False
        pause_s = RETRY_UNKNOWN_S * (1 << min(self.aborted, MAX_RETRY_DOUBLINGS))
        return time.monotonic() - self.answered_at > pause_s


class FitChecker:
    """One verdict a model, for as long as its spec and the cluster's GPUs stay the same."""

    def __init__(self, hub_endpoint: str, on_answer: Callable[[str], None]) -> None:
        """``on_answer`` is called with the model's key when its verdict is there."""
        self._hub_endpoint, self._on_answer = hub_endpoint, on_answer
        self._entries: dict[str, _Entry] = {}
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT)
        self._namespaces: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def verdict(self, model: InferenceModel, devices: Mapping[str, Device]) -> Verdict | None:
        """Return the verdict, or None while the first one is being computed."""
        question = (model.spec.model, model.spec.runtime, model.spec.gpu, tuple(sorted(devices.items())))
        entry = self._entries.get(model.key)
        if entry is None or entry.question != question:
            self.forget(model.key)
            entry = self._entries[model.key] = _Entry(question)
            self._start(model, devices, entry)
        elif entry.is_stale:
            self._start(model, devices, entry)
        return entry.verdict

    def forget(self, key: str) -> None:
        """Drop the verdict of a model that is gone, and end its check."""
        entry = self._entries.pop(key, None)
        if entry and entry.task:
            entry.task.cancel()

    def _start(self, model: InferenceModel, devices: Mapping[str, Device], entry: _Entry) -> None:
        checked = devices or _named_device(model)
        if model.spec.model.scheme != "hf" or not checked:
            entry.verdict, entry.answered_at = unmeasured(model, checked), time.monotonic()
            return
        job = FitJob(model, dict(checked), hub_endpoint=self._hub_endpoint, sees_node=False)
        entry.task = asyncio.create_task(self._check(job, entry), name=f"fit {model.key}")

    async def _check(self, job: FitJob, entry: _Entry) -> None:
        timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_S, self._answer_late, job.model, entry)
        try:
            async with self._lock_of(job.model.namespace), self._semaphore:
                results = await run_isolated(job)
            reports = {product: result.report for product, result in results.items()}
            entry.verdict = conclude(job.model, reports)
        except CheckAborted as error:
            entry.verdict, entry.aborted = Verdict(FitReport("Unknown", str(error))), entry.aborted + 1
        except Exception:
            log.exception("the fit check of %s failed; a pod will measure it", job.model.key)
            entry.verdict = Verdict(FitReport("Unknown", "The check failed; the operator's log says why."))
        finally:
            timer.cancel()
            entry.task, entry.answered_at = None, time.monotonic()
        self._on_answer(job.model.key)

    def _lock_of(self, namespace: str) -> asyncio.Lock:
        lock = self._namespaces.get(namespace)
        if lock is None:
            lock = self._namespaces[namespace] = asyncio.Lock()
        return lock

    def _answer_late(self, model: InferenceModel, entry: _Entry) -> None:
        """Let a model start whose check waits for those of others, or for a slow hub."""
        if entry.verdict is None:
            message = f"The fit is not known after {ANSWER_TIMEOUT_S:.0f} s, so a pod may measure it first."
            entry.verdict = Verdict(FitReport("Unknown", message))
            self._on_answer(model.key)


def unmeasured(model: InferenceModel, devices: Mapping[str, Device]) -> Verdict:
    """Return the verdict of a model whose files only a pod can read, or for which any GPU is allowed."""
    files = files_of(model.spec.model, sees_node=False)  # nothing is read
    if not devices:
        return Verdict(check(model, files, None))
    return conclude(model, {name: check(model, None, device) for name, device in devices.items()})


def conclude(model: InferenceModel, reports: Mapping[str, FitReport]) -> Verdict:
    """Choose the verdict from the reports of every device."""
    fitting = [product for product, report in reports.items() if report.verdict == "Fits"]
    if not fitting:
        best = max(reports.values(), key=lambda report: report.headroom_bytes)
        return Verdict(_explain_private(model, best))
    worst = min((reports[product] for product in fitting), key=lambda report: report.headroom_bytes)
    return Verdict(worst, tuple(fitting) if len(fitting) < len(reports) else ())


def _named_device(model: InferenceModel) -> Mapping[str, Device]:
    """Return the GPU that the spec itself names."""
    try:
        named = device_of(model.spec.gpu)
    except PlanError:
        return {}
    return {named.name: named} if named else {}


def _explain_private(model: InferenceModel, report: FitReport) -> FitReport:
    """Explain why a private model is unknown: the operator may read no Secret."""
    if report.verdict != "Unknown" or model.spec.model.secret_ref is None:
        return report
    message = "The operator reads no Secrets, so a model that needs one is measured by its first pod."
    return replace(report, message=message)
