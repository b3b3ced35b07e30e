"""Access log: one record an answered request, with no word of a prompt, an answer or a key."""

from __future__ import annotations

import logging
import time
from typing import Any

from wisp_gateway.inbound.client import Client
from wisp_http.log_lines import FIELDS
from wisp_http.trace_context import trace_of

PROBES = frozenset({"/livez", "/readyz", "/metrics", "/state"})
"""Paths that others poll; they are not logged."""
log = logging.getLogger("wisp_gateway.access")


def record(client: Client) -> None:
    """Log a request at the end of its answer."""
    if client.path not in PROBES and log.isEnabledFor(logging.INFO):
        log.info("answered", extra={FIELDS: _fields(client)})


def _fields(client: Client) -> dict[str, Any]:
    usage = client.usage
    fields: dict[str, Any] = {
        "request": client.request_id,
        "method": client.method,
        "path": client.raw_path,
        "model": client.model_key or None,
        "key": client.key_name or None,
        "status": client.status,
        "seconds": round(time.monotonic() - client.entered_s, 6),
        "queue_seconds": _rounded(client.queue_s),
    }
    trace = client.span.trace if client.span is not None else trace_of(client.headers)
    if usage is not None:
        fields |= {
            "first_token_seconds": _rounded(usage.first_token_s),
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "finish": usage.finish,
        }
    return fields if trace is None else fields | {"trace": trace}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
