"""Paths of Anthropic's API. Their modules are imported at the first request, not at every start: 24 ms."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.server.service import Service


async def messages(service: Service, http_request: Request) -> Response:
    """Respond to a conversation."""
    from wisp_runtime.server.api.anthropic import endpoints

    return await endpoints.messages(service, http_request)


async def count_tokens(service: Service, http_request: Request) -> Response:
    """Respond with the number of a conversation's tokens."""
    from wisp_runtime.server.api.anthropic import endpoints

    return await endpoints.count_tokens(service, http_request)
