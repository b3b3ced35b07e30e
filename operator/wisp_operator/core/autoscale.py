"""Decide how many pods a model should have now.

Pure: no clock and no memory; the time and the history of demand are arguments, so every rule is a row of
a table test. The caller applies the number and drains what is over; nothing here writes ``spec``.

Concurrency is averaged over two windows, as Knative's autoscaler does: the stable one decides as a rule,
the short one when a burst asks for twice the pods there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wisp_operator.api import Scaling, Spec
from wisp_operator.core.observation import Observation, ObservedPod, Sample

FIRST_BACKOFF_S = 5.0
MAX_BACKOFF_S = 300.0
MAX_MEMORY_BACKOFF_S = 60.0  # after OOMKilled: its remedy may lie outside the spec, where no event shows it
PANIC_FACTOR = 2.0

Why = Literal[
    "Suspended",
    "DoesNotFit",
    "ModelUnsupported",
    "Manual",
    "CrashBackOff",
    "Replace",
    "Idle",
    "KeptWarm",
    "Wake",
    "Demand",
    "Panic",
    "WaitingForFirstReady",
]


@dataclass(frozen=True, slots=True)
class Decision:
    """Number of pods, and the reason.

    Attributes:
        replicas: pods that should exist, without those that drain.
        why: the rule that decided.
        retry_at: Unix time from which a new pod may be tried again, with ``CrashBackOff`` only.
    """

    replicas: int
    why: Why
    retry_at: float | None = None


def decide(spec: Spec, observation: Observation, now: float) -> Decision:
    """Decide how many pods a model should have at ``now``.

    Args:
        spec: spec of the model.
        observation: observed pods, demand with its history, and crashes.
        now: Unix seconds.
    """
    if spec.suspend:
        return Decision(0, "Suspended")
    if observation.fit is not None and (refusal := observation.fit.refusal):
        return Decision(0, refusal)
    scaling = spec.autoscaling
    wanted = (
        _by_demand(spec, scaling, observation, now) if scaling else Decision(spec.replicas or 0, "Manual")
    )
    if wanted.replicas and _must_replace(observation, now):
        return Decision(len(observation.ready), "Replace")
    return _with_limits_on_failure(wanted, spec, observation, now)


def append_sample(
    history: Sequence[Sample], sample: Sample, scaling: Scaling | None = None
) -> tuple[Sample, ...]:
    """Append ``sample`` and drop samples that no window reaches, except the last one before the window.

    Args:
        history: samples, oldest first.
        sample: the newest; one that is not newer than the last replaces it.
        scaling: scaling settings of the model; samples of its stable window are kept.
    """
    window_s = (scaling or Scaling()).stable_window.seconds
    kept = [old for old in history if old.at < sample.at]
    inside = next((i for i, old in enumerate(kept) if old.at > sample.at - window_s), len(kept))
    return (*kept[max(0, inside - 1) :], sample)


def deletion_costs(pods: Sequence[ObservedPod]) -> dict[str, int]:
    """Rank live pods for removal, cheapest first: those not ready, then the least loaded, then the young."""
    live = [pod for pod in pods if pod.phase != "Draining"]
    ranked = sorted(live, key=lambda pod: (pod.phase == "Ready", _load(pod), -pod.created, pod.name))
    return {pod.name: cost for cost, pod in enumerate(ranked)}


def _load(pod: ObservedPod) -> int:
    return pod.runtime.load.running + pod.runtime.load.waiting if pod.runtime else 0


def backoff_s(crashes: int, reason: str = "") -> float:
    """Seconds without a new pod after ``crashes`` in a row, the last for ``reason``: 5, 10, 20 … 300."""
    most_s = MAX_MEMORY_BACKOFF_S if reason == "OOMKilled" else MAX_BACKOFF_S
    return 0.0 if crashes < 1 else float(min(most_s, FIRST_BACKOFF_S * 2.0 ** min(crashes - 1, 16)))


def average(history: Sequence[Sample], window_s: float, now: float) -> float:
    """Average concurrency over the last ``window_s`` seconds; a sample holds until the next one.

    A history shorter than the window is averaged over its own length, so that the first requests count
    fully instead of being diluted by a time without samples.
    """
    if not history:
        return 0.0
    begin = max(now - window_s, history[0].at)
    area = length = 0.0
    for sample, end in zip(history, [*(later.at for later in history[1:]), now], strict=True):
        seconds = max(0.0, min(end, now) - max(sample.at, begin))
        area += sample.concurrency * seconds
        length += seconds
    return area / length if length > 0 else history[-1].concurrency


def _by_demand(spec: Spec, scaling: Scaling, observation: Observation, now: float) -> Decision:
    current = len(observation.live)
    is_asked = observation.demand.waiting + observation.demand.running > 0
    is_idle = not is_asked and _idle_s(observation, now) >= scaling.idle_after.seconds
    is_woken = is_asked or (
        spec.cold_start.mode == "Reject" and not is_idle
    )  # a rejected request waits nowhere
    if is_idle or (current == 0 and not is_woken):
        return Decision(scaling.min, "KeptWarm" if scaling.min else "Idle")
    history = observation.demand.history
    stable = _pods_for(average(history, scaling.stable_window.seconds, now), scaling)
    burst = _pods_for(average(history, scaling.panic_window.seconds, now), scaling)
    if burst > stable and burst >= PANIC_FACTOR * max(1, current):
        return Decision(_within(burst, scaling), "Panic")
    wanted = max(1, stable)
    if wanted < current:
        wanted = min(current, max(wanted, _pods_for(_peak(history, scaling, now), scaling)))
    return Decision(_within(wanted, scaling), "Demand" if current else "Wake")


def _peak(history: Sequence[Sample], scaling: Scaling, now: float) -> float:
    """Find the highest short-window average that ended within the stable window.

    Pods go only once the whole stable window could have done without them, so a burst that raised the
    number does not let it fall again at the next reconcile.
    """
    since, window_s = now - scaling.stable_window.seconds, scaling.panic_window.seconds
    moments = [now, *(sample.at for sample in history if sample.at >= since)]
    return max(
        average([sample for sample in history if sample.at <= moment], window_s, moment) for moment in moments
    )


def _idle_s(observation: Observation, now: float) -> float:
    """Seconds without a request, counted from the last time a pod became ready at the earliest."""
    since_ready = [now - pod.ready_since for pod in observation.live if pod.ready_since is not None]
    return min([math.inf if observation.demand.idle_s is None else observation.demand.idle_s, *since_ready])


def _pods_for(concurrency: float, scaling: Scaling) -> int:
    # The margin keeps a sum of floats from asking for one pod more than a constant load needs.
    return math.ceil(concurrency / scaling.target_concurrency - 1e-9)


def _within(replicas: int, scaling: Scaling) -> int:
    return min(max(replicas, scaling.min), scaling.max)


def _with_limits_on_failure(wanted: Decision, spec: Spec, observation: Observation, now: float) -> Decision:
    """Keep a model up that was never ready, and if none is ready add no pod after crashes until it is due."""
    current = len(observation.live)
    if wanted.replicas < current and _still_wakes(wanted, observation):
        most = spec.autoscaling.max if spec.autoscaling else current
        return Decision(max(wanted.replicas, min(current, most)), "WaitingForFirstReady")
    if observation.last_failure is None or wanted.replicas <= current or observation.ready:
        return wanted
    due = observation.last_failure.at + backoff_s(observation.crashes, observation.last_failure.reason)
    return Decision(current, "CrashBackOff", retry_at=due) if now < due else wanted


def _must_replace(observation: Observation, now: float) -> bool:
    """Whether failing pods must go, since no restart helps them and they are in the way of others.

    A restarted container keeps the limits of its pod. Beside a ready pod, where a new one is made at once,
    only an old one goes: a limit that nobody raises would end pod after pod. And a rolling update waits for
    its first new pod, for ever if that has no room beside a pod of the earlier template which fails.
    """
    failing = [pod for pod in observation.live if pod.phase == "BackingOff"]
    rest = [pod for pod in observation.live if pod.phase not in ("BackingOff", "Ready")]
    if any(pod.outgrew_given_limit for pod in failing):
        is_due = not observation.ready or now - max(pod.created for pod in failing) >= MAX_MEMORY_BACKOFF_S
        return is_due and not rest and not any(pod.is_outdated for pod in observation.live)
    has_no_room = bool(rest) and all(pod.phase == "Pending" and pod.pending_message for pod in rest)
    return has_no_room and not observation.ready and any(pod.is_outdated for pod in failing)


def _still_wakes(wanted: Decision, observation: Observation) -> bool:
    """Whether starting pods must be kept; those that crash without demand may go."""
    if wanted.why == "Manual" or any(pod.ready_since is not None for pod in observation.live):
        return False
    return not (wanted.why in ("Idle", "KeptWarm") and observation.crashes > 0)
