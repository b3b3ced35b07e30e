"""Open pages: each has a bounded queue of events that are written once for all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from wisp_gateway.inbound import sse
from wisp_gateway.reporting.feed.errors import TooManyPages

MAX_PAGES = 64
MAX_BEHIND = 64
RETRY_S = 30

View = frozenset[str] | None
"""Keys of the models that a page may show; None: all."""


def event(kind: str, data: Any) -> bytes:
    """Return one server-sent event."""
    return sse.event(kind, json.dumps(data, ensure_ascii=False, separators=(",", ":")))


class Page:
    """One page: what it may show, and the events that it has not been sent."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, events: bytes) -> None:
        """Add events; a page that is too far behind is ended."""
        if self._events.qsize() < MAX_BEHIND:
            self._events.put_nowait(events)
        else:
            self.end()

    def end(self) -> None:
        """Send nothing more."""
        while not self._events.empty():
            self._events.get_nowait()
        self._events.put_nowait(None)

    async def next(self) -> bytes | None:
        """Wait for events; None: there are no more."""
        return await self._events.get()


class Pages:
    """All open pages."""

    def __init__(self) -> None:
        self._pages: set[Page] = set()
        self._is_closed = False
        self._pending: list[tuple[str, bytes]] = []

    def __len__(self) -> int:
        return len(self._pages)

    def open(self, view: View) -> Page:
        """Add a page.

        Raises:
            TooManyPages: there are as many as may be.
        """
        if len(self._pages) >= MAX_PAGES:
            message = f"{MAX_PAGES} pages follow this gateway already. Close one."
            raise TooManyPages(message, retry_after_s=RETRY_S)
        page = Page(view)
        self._pages.add(page)
        if self._is_closed:
            page.end()
        return page

    def remove(self, page: Page) -> None:
        """Forget a page."""
        self._pages.discard(page)

    def close(self) -> None:
        """End every page: the gateway stops."""
        self._is_closed = True
        for page in self._pages:
            page.end()

    def add(self, kind: str, key: str, data: Any) -> None:
        """Add an event about a model, for the pages that may show it; :meth:`flush` sends it."""
        if self._pages:
            self._pending.append((key, event(kind, data)))

    def add_sample(self, sample: dict[str, Any]) -> None:
        """Add a sample; each view gets the part that it may show."""
        for view in {page.view for page in self._pages}:
            models = {key: row for key, row in sample["models"].items() if view is None or key in view}
            if models:
                self._send(view, event("sample", sample | {"models": models}))

    def flush(self) -> None:
        """Send what was added, as one chunk a page."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        for view in {page.view for page in self._pages}:
            chunk = b"".join(_seen_by(view, pending))
            if chunk:
                self._send(view, chunk)

    def _send(self, view: View, chunk: bytes) -> None:
        for page in self._pages:
            if page.view == view:
                page.put(chunk)


def _seen_by(view: View, events: Iterable[tuple[str, bytes]]) -> Iterable[bytes]:
    return (chunk for key, chunk in events if view is None or key in view)
