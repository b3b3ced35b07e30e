"""Requests that run: each ends at the latest with its client, its deadline or the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from wisp_gateway.errors import DeadlineExceeded, Stopping
from wisp_gateway.inbound.client import Client, ClientGone


class RunningRequests:
    """All requests that wait for a pod, are answered by one, or follow the feed."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[None]] = set()

    def abort(self) -> None:
        """End every request, each with a clean error."""
        for request in self._running:
            request.cancel()

    async def run(self, client: Client, work: Coroutine[Any, Any, None], timeout_s: float | None) -> None:
        """Run ``work``; cancel it at the end of its time, when its client disconnects, or when aborted.

        Args:
            timeout_s: seconds from the request's arrival.

        Raises:
            ClientGone, DeadlineExceeded, Stopping, GatewayError: the work did not end, or failed.
        """
        request = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(client.gone())
        self._running.add(request)
        left_s = None if timeout_s is None else max(0.0, client.entered_s + timeout_s - time.monotonic())
        try:
            await asyncio.wait({request, gone}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not request.done():
                raise ClientGone
            if not request.done():
                raise DeadlineExceeded(
                    f"The answer was not complete {timeout_s:g} s after the request (x-request-timeout), "
                    "and was ended. Give it more time, or ask for a shorter answer."
                )
            if request.cancelled():
                raise Stopping(
                    "The gateway is stopping; the request was ended. Send it again.", retry_after_s=1
                )
            request.result()
        finally:
            self._running.discard(request)
            request.cancel()
            gone.cancel()
            await asyncio.wait({request, gone})
