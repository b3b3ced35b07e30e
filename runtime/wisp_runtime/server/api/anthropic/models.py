"""The served model as Anthropic's ``/v1/models`` describes one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import QueryParams

from wisp_runtime.server.http.query_string import invalid_query, query_number, query_values
from wisp_runtime.server.service import Service

LIFECYCLE = "active"
LIFECYCLES = (LIFECYCLE, "deprecated", "retired")
DEFAULT_LIMIT, MAX_LIMIT = 20, 1000


def model_list(service: Service, query: QueryParams) -> dict[str, Any]:
    """Return a page of the names of the model.

    Raises:
        ApiError: 400, naming the parameter of the query.
    """
    names, has_more = _page(_listed(service.config.names, query), query)
    first, last = (names[0], names[-1]) if names else (None, None)
    data = [model_info(name, service) for name in names]
    return {"data": data, "has_more": has_more, "first_id": first, "last_id": last}


def _listed(names: Sequence[str], query: QueryParams) -> Sequence[str]:
    """Return the names in the stages that a query asks for: all are in one."""
    stages = query_values(query, "lifecycle")
    if unknown := set(stages) - set(LIFECYCLES):
        raise invalid_query("lifecycle", f"{min(unknown)[:80]!r} is none of {', '.join(LIFECYCLES)}")
    return names if not stages or LIFECYCLE in stages else []


def _page(names: Sequence[str], query: QueryParams) -> tuple[Sequence[str], bool]:
    """Return the names of a page, and whether there are more in its direction."""
    limit = query_number("limit", query.get("limit", str(DEFAULT_LIMIT)))
    if not 1 <= limit <= MAX_LIMIT:
        raise invalid_query("limit", f"it must be 1 to {MAX_LIMIT}")
    if "before_id" in query and "after_id" in query:
        raise invalid_query("before_id", "send it or 'after_id'")
    if "before_id" in query:
        names = names[: _place(names, query, "before_id")]
        return names[-limit:], len(names) > limit
    names = names[_place(names, query, "after_id") + 1 :] if "after_id" in query else names
    return names[:limit], len(names) > limit


def _place(names: Sequence[str], query: QueryParams, name: str) -> int:
    if query[name] not in names:
        raise invalid_query(name, "none of the models has this name")
    return names.index(query[name])


def model_info(name: str, service: Service) -> dict[str, Any]:
    """Return one of its names."""
    created = datetime.fromtimestamp(service.created_s, UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created,
        "lifecycle": LIFECYCLE,
        "max_input_tokens": service.info.max_context,
        "max_tokens": service.info.max_context,
    }
