"""Documents about models: ``/v1/models``, and the gateway's own part of ``/state``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.pod import Pod
from wisp_gateway.routing.registry import ModelRegistry


def model_list(
    registry: ModelRegistry, states: Sequence[ModelState], *, is_anthropic: bool
) -> dict[str, Any]:
    """Return the document of ``/v1/models``, all on one page, in OpenAI's format or in Anthropic's."""
    cards = [model_card(registry, state, is_anthropic=is_anthropic) for state in states]
    if not is_anthropic:
        return {"object": "list", "data": cards}
    ends = (cards[0]["id"], cards[-1]["id"]) if cards else (None, None)
    return {"data": cards, "has_more": False, "first_id": ends[0], "last_id": ends[1]}


def model_card(registry: ModelRegistry, state: ModelState, *, is_anthropic: bool) -> dict[str, Any]:
    """Return one entry of ``/v1/models``; models at zero have one too."""
    model, name = state.model, registry.public_name(state)
    if is_anthropic:
        created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
        shown = {"type": "model", "id": name, "display_name": name}
        return shown | {"created_at": created, "lifecycle": "active", "state": state.effective_state}
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": model.namespace,
        "state": state.effective_state,
    }


def model_state(state: ModelState, base_url: str) -> dict[str, Any]:
    """Return the gateway's own part of a model's ``/state`` (docs/contracts.md)."""
    model = state.model
    return {
        "namespace": model.namespace,
        "name": model.name,
        "servedName": model.served_name,
        "state": state.effective_state,
        "reason": model.reason,
        "message": model.message,
        "phase": model.phase,
        "progress": model.progress,
        "waiting": len(state.queue),
        "running": state.running,
        "arrivals": state.arrivals,
        "idleSeconds": state.idle_s,
        "tokensPerSecond": round(state.tokens_per_second, 1),
        "lastColdStartSeconds": state.last_cold_start_s,
        "url": f"{base_url}/{model.key}/v1",
        "endpoints": [_endpoint_state(pod) for pod in state.pods.values()],
    }


def _endpoint_state(pod: Pod) -> dict[str, Any]:
    endpoint = pod.endpoint
    return {
        "id": endpoint.id,
        "address": endpoint.address,
        "ready": pod.is_ready,
        "draining": endpoint.draining,
        "running": pod.running,
    }
