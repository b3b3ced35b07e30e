"""The served model as Anthropic's ``/v1/models`` describes one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from wisp_runtime.server.service import Service


def model_list(service: Service) -> dict[str, Any]:
    """Return the names of the model, all on one page."""
    names = service.config.names
    data = [model_info(name, service) for name in names]
    return {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}


def model_info(name: str, service: Service) -> dict[str, Any]:
    """Return one of its names."""
    created = datetime.fromtimestamp(service.created_s, UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": service.info.max_context,
        "max_tokens": service.info.max_context,
    }
