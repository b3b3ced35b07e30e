"""Server-sent events, and prompt detection of a client that disconnects."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from wisp_runtime.server.api.dialects import error_event
from wisp_runtime.server.api.errors import ApiError, internal_error
from wisp_runtime.server.http.usage_report import last_comment

DONE = b"data: [DONE]\n\n"
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}

log = logging.getLogger(__name__)

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed its connection."""


def event(data: dict[str, Any]) -> bytes:
    """Return one event with a JSON payload."""
    return text_event(json.dumps(data, ensure_ascii=False, separators=(",", ":")))


def text_event(data: str) -> bytes:
    """Return one event whose payload is JSON text already."""
    return f"data: {data}\n\n".encode()


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, and cancel it as soon as the client disconnects.

    Raises:
        ClientLeft: the client disconnected first.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_cancel_at_disconnect(receive, working))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done() and not working.cancelled():
            return working.result()
        raise ClientLeft
    finally:
        for task in (working, watching):
            if not task.cancelling():  # a second time would break off its clean-up
                task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _cancel_at_disconnect(receive: Receive, working: asyncio.Task[T]) -> None:
    """Cancel ``working`` before it runs again: a stream that waits for its reader goes on when that leaves,
    and would format all that has come meanwhile for nobody, at once.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    working.cancel()


class EventStream(Response):
    """A response of events. The status line is sent with the first one.

    So a failure before it is an ordinary error response, and may be retried elsewhere; a failure after it
    is an event with the error, which the official clients raise.
    """

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers=HEADERS)
        self._events = events
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; close them early if the client disconnects."""
        with suppress(ClientLeft):
            await unless_client_leaves(receive, self._send_all(scope, send))

    async def _send_all(self, scope: Scope, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for data in events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            except ApiError as error:
                await send(_last(error, scope))
            except Exception as error:
                log.exception("a response ended with a bug of ours")
                await send(_last(internal_error(error), scope))
            await send({"type": "http.response.body", "body": last_comment(), "more_body": False})


def _last(error: ApiError, scope: Scope) -> Message:
    return {"type": "http.response.body", "body": error_event(error, scope), "more_body": True}
