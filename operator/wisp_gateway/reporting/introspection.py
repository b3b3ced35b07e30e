"""What the gateway says about itself and its models, as values: ``/v1/models`` and ``/state``."""

from __future__ import annotations

from typing import Any

from wisp_gateway.routing.model_state import Desk, Pod
from wisp_gateway.routing.registry import Fleet


def model_card(fleet: Fleet, desk: Desk) -> dict[str, Any]:
    """One entry of ``/v1/models``; models at zero have one too."""
    model = desk.model
    return {
        "id": fleet.public_name(desk),
        "object": "model",
        "created": model.created,
        "owned_by": model.namespace,
        "state": desk.state,
    }


def state(fleet: Fleet, *, gateway: str, status: str, base_url: str) -> dict[str, Any]:
    """The document behind ``/state`` (docs/architecture.md)."""
    models = [_model_state(desk, base_url) for desk in fleet.desks()]
    return {"gateway": gateway, "status": status, "models": models}


def _model_state(desk: Desk, base_url: str) -> dict[str, Any]:
    model = desk.model
    return {
        "namespace": model.namespace,
        "name": model.name,
        "servedName": model.served_name,
        "state": desk.state,
        "reason": model.reason,
        "message": model.message,
        "phase": model.phase,
        "progress": model.progress,
        "waiting": len(desk.hold),
        "running": desk.running,
        "arrivals": desk.arrivals,
        "idleSeconds": desk.idle_s,
        "tokensPerSecond": round(desk.tokens_per_second, 1),
        "lastColdStartSeconds": desk.last_cold_start_s,
        "url": f"{base_url}/{model.key}/v1",
        "endpoints": [_endpoint_state(pod) for pod in desk.pods.values()],
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
