"""Documents about the gateway and its models: ``/v1/models`` and ``/state``."""

from __future__ import annotations

from typing import Any

from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.pod import Pod
from wisp_gateway.routing.registry import ModelRegistry


def model_card(registry: ModelRegistry, state: ModelState) -> dict[str, Any]:
    """Return one entry of ``/v1/models``; models at zero have one too."""
    model = state.model
    return {
        "id": registry.public_name(state),
        "object": "model",
        "created": model.created,
        "owned_by": model.namespace,
        "state": state.effective_state,
    }


def state_document(registry: ModelRegistry, *, gateway: str, status: str, base_url: str) -> dict[str, Any]:
    """Return the document of ``/state`` (docs/contracts.md)."""
    models = [_model_state(state, base_url) for state in registry.states()]
    return {"gateway": gateway, "status": status, "models": models}


def _model_state(state: ModelState, base_url: str) -> dict[str, Any]:
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
