"""Traces of requests, where an endpoint for them is set; OpenTelemetry is imported then, and not before."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wisp_http.spans import Tracer

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_URL = re.compile(r"https?://[^/\s]")
log = logging.getLogger(__name__)


def open_tracer(endpoint: str | None, service: str) -> Tracer | None:
    """Return a tracer that sends spans to an OTLP/HTTP endpoint; None without one, or without the extra.

    Args:
        endpoint: base URL, such as ``http://collector:4318``.
        service: ``service.name`` of the spans, unless ``OTEL_SERVICE_NAME`` names another.
    """
    if not endpoint:
        return None
    if not _URL.match(endpoint):
        log.warning(
            "no traces are sent: %r is no URL of a collector, such as http://127.0.0.1:4318.", endpoint
        )
        return None
    try:
        from wisp_http.spans import Tracer
    except ImportError as error:
        log.warning("no traces are sent: %s. Install wisp-serving[otel], or set no endpoint.", error)
        return None
    return Tracer(endpoint, service)


def generation_attributes(path: str, model: str) -> dict[str, str]:
    """Return the attributes of a request that OpenTelemetry's GenAI conventions know before its answer."""
    attributes = {"gen_ai.provider.name": "wisp", "gen_ai.request.model": model}
    return attributes | {"gen_ai.operation.name": _OPERATIONS[path]} if path in _OPERATIONS else attributes


def usage_attributes(
    prompt_tokens: int, cached_tokens: int, completion_tokens: int, finish: str
) -> dict[str, int | list[str]]:
    """Return the attributes of an answer by the same conventions."""
    return {
        "gen_ai.usage.input_tokens": prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": cached_tokens,
        "gen_ai.usage.output_tokens": completion_tokens,
        "gen_ai.response.finish_reasons": [finish],
    }
