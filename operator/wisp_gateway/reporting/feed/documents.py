"""Documents of the feed: a model with its pods' details, a sample, a finished request (docs/contracts.md)."""

from __future__ import annotations

import time
from typing import Any

from wisp_gateway.inbound.client import Client
from wisp_gateway.reporting.feed.pod_details import StartPhase
from wisp_gateway.reporting.feed.pod_reader import PodReader, phases_of
from wisp_gateway.reporting.introspection import model_state
from wisp_gateway.routing.model_state import ModelState

FRESH_S = 5.0
_VOLATILE = ("idleSeconds",)


def model_document(state: ModelState, base_url: str, pods: PodReader, now_s: float) -> dict[str, Any]:
    """Return a model as pages show it.

    Args:
        now_s: time by the clock of ``state``.
    """
    known = pods.last_of(state)
    ledger = [{"name": name, "bytes": size} for name, size in known.ledger or ()] if known else None
    return model_state(state, base_url) | {
        "gpu": {"name": known.gpu[0], "memoryBytes": known.gpu[1]} if known and known.gpu else None,
        "ledger": ledger,
        "context": known.context if known else None,
        "replicas": {"desired": _desired(state), "ready": state.ready},
        "startPhases": start_phases(state, pods, now_s),
        "defaults": known.defaults if known else None,
        "canStop": state.model.can_stop,
        "idleAfterSeconds": state.model.idle_after_s,
        "uri": state.model.uri,
        "gpus": state.model.gpus,
    }


def stable(document: dict[str, Any]) -> dict[str, Any]:
    """Return a model's document without what changes by itself."""
    return {name: value for name, value in document.items() if name not in _VOLATILE}


def start_phases(state: ModelState, pods: PodReader, now_s: float) -> list[dict[str, Any]]:
    """Return the phases of the wake that runs, ``schedule`` first; none of a model that is not waking."""
    if not is_waking(state):
        return []
    reading, began_s = pods.of_starting(state), state.wake_began_s
    phases = list(phases_of(reading))
    if began_s is not None:
        seen_s = now_s if reading is None else reading.read_s
        before_s = max(0.0, seen_s - began_s - sum(phase.seconds for phase in phases))
        phases.insert(0, StartPhase("schedule", round(before_s, 3), 1.0 if phases else None))
    return [{"name": phase.name, "progress": phase.progress, "seconds": phase.seconds} for phase in phases]


def is_waking(state: ModelState) -> bool:
    """Return whether a wake runs: begun by a request here, or seen in the snapshot."""
    is_begun = state.wake_began_s is not None and state.model.state != "Failed"
    return (is_begun or state.model.state == "Waking") and not state.ready


def pods_sample(state: ModelState, pods: PodReader, now_s: float) -> dict[str, Any]:
    """Return the part of a sample that pods report; null without a recent report."""
    fresh = [reading for reading in pods.of_ready(state) if now_s - reading.read_s <= FRESH_S]
    details = [reading.details for reading in fresh if reading.details is not None]
    blocks = sum(pod.kv_total for pod in details)
    prompts = sum(pod.prompt_tokens + pod.cached_tokens for pod in details)
    used = [pod.gpu_used_bytes for pod in details if pod.gpu_used_bytes is not None]
    return {
        "kv": round(sum(pod.kv_used for pod in details) / blocks, 4) if blocks else None,
        "prefixHits": round(sum(pod.cached_tokens for pod in details) / prompts, 4) if prompts else None,
        "gpuUsed": sum(used) if used else None,
    }


def request_row(client: Client, seconds: float) -> dict[str, Any]:
    """Return a finished request, without any text of it."""
    usage, refusal = client.usage, client.refusal
    queue_s = _queue_s(client, seconds) if client.waited_for_wake is not None else None
    return {
        "id": client.request_id,
        "time": round(time.time() - seconds, 3),
        "key": client.model_key,
        "path": client.path,
        "status": client.status,
        "promptTokens": usage.prompt_tokens if usage else None,
        "cachedTokens": usage.cached_tokens if usage else None,
        "completionTokens": usage.completion_tokens if usage else None,
        "firstTokenSeconds": _rounded(usage.first_token_s) if usage else None,
        "perTokenSeconds": _rounded(usage.per_token_s) if usage else None,
        "seconds": round(seconds, 4),
        "queueSeconds": _rounded(queue_s),
        "isWoken": bool(client.waited_for_wake),
        "code": refusal.code if refusal else None,
        "limit": refusal.limit if refusal else None,
        "finish": usage.finish if usage else None,
        "keyName": client.key_name,
    }


def _queue_s(client: Client, seconds: float) -> float:
    """Return an admitted request's wait for a place at a pod after its upload; to its end if none had one."""
    received_s = client.entered_s if client.received_s is None else client.received_s
    held_s = seconds if client.queue_s is None else client.queue_s
    return max(0.0, held_s - (received_s - client.entered_s))


def without_sender(row: dict[str, Any]) -> dict[str, Any]:
    """Return a request's row for another key of its model: without its id and the name of its key."""
    return row | {"id": "", "keyName": ""}


def _desired(state: ModelState) -> int:
    listed = sum(not pod.endpoint.draining for pod in state.pods.values())
    return listed if state.model.desired is None else state.model.desired


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 5)
