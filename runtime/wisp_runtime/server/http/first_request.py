"""Endpoints whose modules are imported at their first request, not at every start.

A thread imports them, so that the streams of other requests go on; requests that come meanwhile wait for it.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from types import ModuleType

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.server.service import Service

ServiceEndpoint = Callable[[Service, Request], Awaitable[Response]]

_IMPORTED: dict[str, ModuleType] = {}


def at_first_request(module: str, name: str) -> ServiceEndpoint:
    """Return the endpoint ``name`` of a module that is imported when a request asks for it."""

    async def endpoint(service: Service, request: Request) -> Response:
        respond: ServiceEndpoint = getattr(await imported(module), name)
        return await respond(service, request)

    return endpoint


async def imported(module: str) -> ModuleType:
    """Return a module, imported in a thread. Python lets two that ask for it wait for one import."""
    if module not in _IMPORTED:
        _IMPORTED[module] = await asyncio.to_thread(importlib.import_module, module)
    return _IMPORTED[module]
