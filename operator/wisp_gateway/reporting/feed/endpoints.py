"""HTTP of the feed: ``/state``, its stream and history, wake and stop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from wisp_gateway.errors import Headers, ModelNotFound
from wisp_gateway.inbound import sse
from wisp_gateway.inbound.client import Client
from wisp_gateway.inbound.cross_origin import AllowedOrigins
from wisp_gateway.reporting.feed.control import Control, check_origin
from wisp_gateway.reporting.feed.feed import Feed
from wisp_gateway.reporting.feed.subscribers import Subscriber, VisibleModels, event, may_read
from wisp_gateway.routing.registry import ModelRegistry

COMMENT_S = 15.0
_JSON: Headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]

CheckAccess = Callable[[], VisibleModels]
"""Check a client's key again; return the models that it opens, or raise Unauthorized."""


class FeedEndpoints:
    """Answers requests of pages and of other clients to the feed."""

    def __init__(
        self, registry: ModelRegistry, feed: Feed, control: Control, origins: AllowedOrigins
    ) -> None:
        self._registry = registry
        self._feed = feed
        self._control = control
        self._origins = origins

    async def serve(
        self, client: Client, part: str, key: str | None, check_access: CheckAccess, account: str
    ) -> None:
        """Answer one request.

        Args:
            check_access: see :data:`CheckAccess`.
            account: account of the sender, which may have a part of all subscribers.
            part: ``""``, ``stream``, ``history``, ``wake`` or ``stop``.
            key: model that ``wake`` and ``stop`` mean.

        Raises:
            GatewayError: it is refused.
        """
        match part:
            case "stream":
                await self._stream(client, check_access, account)
            case "history":
                await _reply(client, 200, self._feed.history(check_access()))
            case "wake" | "stop":
                await self._change(client, part, key or "", check_access())
            case _:
                await _reply(client, 200, self._feed.state(check_access()))

    async def _stream(self, client: Client, check_access: CheckAccess, account: str) -> None:
        subscriber = self._feed.open(check_access(), account)
        try:
            await client.begin_stream(sse.HEADERS)
            await client.write(event("state", self._feed.state(subscriber.visible)))
            await self._follow(client, subscriber, check_access)
            await client.end_stream()
        finally:
            self._feed.remove(subscriber)

    async def _follow(self, client: Client, subscriber: Subscriber, check_access: CheckAccess) -> None:
        """Pass on a subscriber's events, and a comment where there are none; check its key as often."""
        checked_s = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(COMMENT_S):
                    events = await subscriber.next()
            except TimeoutError:
                events = sse.comment("")
            if events is None:
                return
            if time.monotonic() - checked_s >= COMMENT_S:
                self._feed.show(subscriber, check_access())
                checked_s = time.monotonic()
            await client.write(events)

    async def _change(self, client: Client, part: str, key: str, visible: VisibleModels) -> None:
        origin, host = client.header(b"origin"), client.header(b"host")
        check_origin(origin, host, is_allowed=self._origins.allows(origin))
        state = next((state for state in self._registry.states() if state.model.key == key), None)
        if state is None or not may_read(visible, key):
            raise ModelNotFound(
                f"Model {key[:200]!r} does not exist, or not for this key. GET /state lists them."
            )
        if part == "stop":
            await self._control.stop(state)
        elif state.ready:
            await _reply(client, 200, {"state": state.effective_state})
            return
        else:
            await self._control.wake(state)
        await _reply(client, 202, {"state": state.effective_state})


async def _reply(client: Client, status: int, document: object) -> None:
    await client.reply(status, json.dumps(document, ensure_ascii=False).encode(), _JSON)
