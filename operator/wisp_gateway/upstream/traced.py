"""A try of a request at a pod, as a span of its trace."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from wisp_gateway.errors import Headers
from wisp_gateway.upstream.connection import Answer

if TYPE_CHECKING:
    from wisp_http.spans import Span


class TracedTry:
    """A try at a pod, within the span of its request; without one it does nothing.

    Args:
        span: span of the request.
        address: address of the pod, ``host:port``.
    """

    def __init__(self, span: Span | None, address: str) -> None:
        self._span: Span | None = None
        if span is not None:
            host, _, port = address.rpartition(":")
            attributes: dict[str, str | int] = {"server.address": host.strip("[]"), "server.port": int(port)}
            self._span = span.child("upstream", time.monotonic(), kind="client", attributes=attributes)

    @property
    def headers(self) -> Headers:
        """Headers by which the pod's spans join the trace."""
        return self._span.headers if self._span is not None else []

    def fail(self, error: BaseException) -> None:
        """End the span: there is no answer."""
        if self._span is not None:
            self._span.end(error=str(error) or type(error).__name__, kind=type(error).__name__)

    def follow(self, answer: Answer) -> None:
        """End the span with the answer."""
        if self._span is not None:
            self._span.set({"http.response.status_code": answer.status})
            answer.finished.add_done_callback(self._end)

    def _end(self, finished: asyncio.Future[None]) -> None:
        assert self._span is not None
        failure = None if finished.cancelled() else finished.exception()
        if failure is None:
            self._span.end()
        else:
            self.fail(failure)
