"""Fit checks of models, in the background of the reconcile loop; verdicts are cached.

Headers come over the network and may take seconds; a reconcile never waits for them. The model is enqueued
again when its verdict is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from wisp_operator.api import InferenceModel
from wisp_operator.core.fit import Device, FitReport, check, device_of
from wisp_operator.core.sources import files_of
from wisp_plan.errors import PlanError

MAX_CONCURRENT = 4
CHECK_TIMEOUT_S = 30.0
RETRY_UNKNOWN_S = 300.0


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
    question: object
    verdict: Verdict | None = None
    answered_at: float = 0.0


class FitChecker:
    """One verdict a model, for as long as its spec and the cluster's GPUs stay the same."""

    def __init__(self, hub_endpoint: str, on_answer: Callable[[str], None]) -> None:
        """``on_answer`` is called with the model's key when its verdict is there."""
        self._hub_endpoint, self._on_answer = hub_endpoint, on_answer
        self._entries: dict[str, _Entry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT)

    def verdict(self, model: InferenceModel, devices: Mapping[str, Device]) -> Verdict | None:
        """Return the verdict, or None while it is being computed."""
        question = (model.spec.model, model.spec.runtime, model.spec.gpu, tuple(sorted(devices.items())))
        entry = self._entries.get(model.key)
        if entry is None or entry.question != question or _is_stale(entry):
            entry = self._entries[model.key] = _Entry(question)
            task = asyncio.create_task(self._check(model, dict(devices), entry), name=f"fit {model.key}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return entry.verdict

    def forget(self, key: str) -> None:
        """Drop the verdict of a model that is gone."""
        self._entries.pop(key, None)

    async def _check(self, model: InferenceModel, devices: Mapping[str, Device], entry: _Entry) -> None:
        try:
            async with self._semaphore:
                work = asyncio.to_thread(check_devices, model, devices, self._hub_endpoint)
                entry.verdict = await asyncio.wait_for(work, CHECK_TIMEOUT_S)
        except TimeoutError:
            message = (
                f"The model's files could not be read within {CHECK_TIMEOUT_S:.0f} s; a pod will measure it."
            )
            entry.verdict = Verdict(FitReport("Unknown", message))
        entry.answered_at = time.monotonic()
        self._on_answer(model.key)


def check_devices(model: InferenceModel, devices: Mapping[str, Device], hub_endpoint: str = "") -> Verdict:
    """Check a model against every GPU of the cluster that its spec allows.

    Args:
        devices: devices by product; if empty, the GPU that the spec itself names is checked.
    """
    source = model.spec.model
    # This pod does not see a node's file:// directories.
    files = files_of(source, endpoint=hub_endpoint) if source.scheme == "hf" else None
    reports = {
        product: check(model, files, device) for product, device in _devices_or_named(model, devices).items()
    }
    if not reports:
        return Verdict(check(model, files, None))
    fitting = [product for product, report in reports.items() if report.verdict == "Fits"]
    if not fitting:
        return Verdict(
            _explain_private(model, max(reports.values(), key=lambda report: report.headroom_bytes))
        )
    worst = min((reports[product] for product in fitting), key=lambda report: report.headroom_bytes)
    return Verdict(worst, tuple(fitting) if len(fitting) < len(reports) else ())


def _devices_or_named(model: InferenceModel, devices: Mapping[str, Device]) -> Mapping[str, Device]:
    if devices:
        return devices
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


def _is_stale(entry: _Entry) -> bool:
    """Whether an unknown verdict is old enough to check again: a hub may have been away."""
    if entry.verdict is None or entry.verdict.report.verdict != "Unknown":
        return False
    return time.monotonic() - entry.answered_at > RETRY_UNKNOWN_S
