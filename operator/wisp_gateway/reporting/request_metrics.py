"""Metrics of requests: counted when one is refused or ends, never for a token."""

from __future__ import annotations

import time

from wisp_gateway.errors import GatewayError
from wisp_gateway.inbound.client import Client
from wisp_gateway.metrics import Metrics


def count_refusal(metrics: Metrics, client: Client, error: GatewayError) -> None:
    """Count an error that the gateway answers, limits of keys among them."""
    key = metrics.key_label(client.key_name)
    metrics.refusals.add(1, client.model_key, key, error.code, error.type)


def count_request(metrics: Metrics, client: Client) -> None:
    """Count a request at its end."""
    model, key, usage = client.model_key, metrics.key_label(client.key_name), client.usage
    metrics.requests.add(1, model, str(client.status))
    metrics.key_requests.add(1, model, key, str(client.status))
    if usage is None:
        return
    metrics.key_tokens.add(usage.prompt_tokens, model, key, "prompt")
    metrics.key_tokens.add(usage.cached_tokens, model, key, "cached")
    metrics.key_tokens.add(usage.completion_tokens, model, key, "completion")
    if client.status < 400:
        metrics.request.observe(time.monotonic() - client.entered_s, model)
    if usage.first_token_s is not None:
        metrics.first_token.observe(usage.first_token_s, model)
    if usage.per_token_s is not None:
        metrics.per_token.observe(usage.per_token_s, model)
