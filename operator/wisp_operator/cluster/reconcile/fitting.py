"""Asks whether models fit, beside the reconcile loop, and remembers the answers.

Headers come over the network and may take seconds; a look at a model never waits for them. It comes again
when the answer is there.
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

AT_ONCE = 4
GIVE_UP_S = 30.0
ASK_AGAIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found out.

    Attributes:
        report: for ``status.fit``.
        products: GPU products of the cluster on which the model fits, if it does not fit on all of them.
    """

    report: FitReport
    products: tuple[str, ...] = ()


@dataclass
class _Asked:
    question: object
    verdict: Verdict | None = None
    answered_at: float = 0.0


class Fitter:
    """One answer a model, for as long as its spec and the cluster's GPUs stay the same."""

    def __init__(self, hub_endpoint: str, answered: Callable[[str], None]) -> None:
        """``answered`` is called with the model's key when its answer is there."""
        self._hub_endpoint, self._answered = hub_endpoint, answered
        self._asked: dict[str, _Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(AT_ONCE)

    def verdict(self, model: InferenceModel, devices: Mapping[str, Device]) -> Verdict | None:
        """The answer, or None while it is being found out."""
        question = (model.spec.model, model.spec.runtime, model.spec.gpu, tuple(sorted(devices.items())))
        asked = self._asked.get(model.key)
        if asked is None or asked.question != question or _is_stale(asked):
            asked = self._asked[model.key] = _Asked(question)
            task = asyncio.create_task(self._ask(model, dict(devices), asked), name=f"fit {model.key}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return asked.verdict

    def forget(self, key: str) -> None:
        """Drop the answer of a model that is gone."""
        self._asked.pop(key, None)

    async def _ask(self, model: InferenceModel, devices: Mapping[str, Device], asked: _Asked) -> None:
        try:
            async with self._gate:
                work = asyncio.to_thread(judge, model, devices, self._hub_endpoint)
                asked.verdict = await asyncio.wait_for(work, GIVE_UP_S)
        except TimeoutError:
            message = f"The model's files could not be read within {GIVE_UP_S:.0f} s; a pod will measure it."
            asked.verdict = Verdict(FitReport("Unknown", message))
        asked.answered_at = time.monotonic()
        self._answered(model.key)


def judge(model: InferenceModel, devices: Mapping[str, Device], hub_endpoint: str = "") -> Verdict:
    """Check a model against every GPU of the cluster that its spec allows.

    Args:
        devices: by product; empty if no node is known, then what the spec itself names is asked about.
    """
    source = model.spec.model
    # What file:// means on a node, this pod cannot see.
    files = files_of(source, endpoint=hub_endpoint) if source.scheme == "hf" else None
    reports = {product: check(model, files, device) for product, device in _or_named(model, devices).items()}
    if not reports:
        return Verdict(check(model, files, None))
    fitting = [product for product, report in reports.items() if report.verdict == "Fits"]
    if not fitting:
        return Verdict(_private(model, max(reports.values(), key=lambda report: report.headroom_bytes)))
    worst = min((reports[product] for product in fitting), key=lambda report: report.headroom_bytes)
    return Verdict(worst, tuple(fitting) if len(fitting) < len(reports) else ())


def _or_named(model: InferenceModel, devices: Mapping[str, Device]) -> Mapping[str, Device]:
    if devices:
        return devices
    try:
        named = device_of(model.spec.gpu)
    except PlanError:
        return {}
    return {named.name: named} if named else {}


def _private(model: InferenceModel, report: FitReport) -> FitReport:
    """Say why a private model is not known: the operator may read no Secret."""
    if report.verdict != "Unknown" or model.spec.model.secret_ref is None:
        return report
    message = "The operator reads no Secrets, so a model that needs one is measured by its first pod."
    return replace(report, message=message)


def _is_stale(asked: _Asked) -> bool:
    """Whether an unknown answer is old enough to ask again: a hub may have been away."""
    if asked.verdict is None or asked.verdict.report.verdict != "Unknown":
        return False
    return time.monotonic() - asked.answered_at > ASK_AGAIN_S
