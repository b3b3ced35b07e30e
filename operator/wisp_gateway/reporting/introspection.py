"""Documents about models: ``/v1/models``, and the gateway's own part of ``/state``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.pod import Pod
from wisp_gateway.routing.registry import ModelRegistry

ContextOf = Callable[[ModelState], int | None]
"""Reader of a model's context in tokens; None where no pod has reported it."""


def model_list(
    registry: ModelRegistry, states: Sequence[ModelState], context_of: ContextOf
) -> dict[str, Any]:
    """Return the document of ``/v1/models`` in OpenAI's format, all on one page."""
    return {"object": "list", "data": [model_card(registry, state, context_of) for state in states]}


def anthropic_model_list(registry: ModelRegistry, states: Sequence[ModelState]) -> dict[str, Any]:
    """Return the document of ``/v1/models`` in Anthropic's format, all on one page."""
    cards = [anthropic_model_card(registry, state) for state in states]
    ends = (cards[0]["id"], cards[-1]["id"]) if cards else (None, None)
    return {"data": cards, "has_more": False, "first_id": ends[0], "last_id": ends[1]}


def model_card(registry: ModelRegistry, state: ModelState, context_of: ContextOf) -> dict[str, Any]:
    """Return one entry of ``/v1/models``; models at zero have one too, with the context of their last pod."""
    context = context_of(state)
    card = {
        "id": registry.public_name(state),
        "object": "model",
        "created": state.model.created,
        "owned_by": state.model.namespace,
        "state": state.effective_state,
    }
    return card if context is None else card | {"max_model_len": context}


def anthropic_model_card(registry: ModelRegistry, state: ModelState) -> dict[str, Any]:
    """Return one entry of ``/v1/models`` as Anthropic's clients read it."""
    model, name = state.model, registry.public_name(state)
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    shown = {"type": "model", "id": name, "display_name": name}
    return shown | {"created_at": created, "lifecycle": "active", "state": state.effective_state}


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
        "idleSeconds": state.idle_since_ready_s,
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
