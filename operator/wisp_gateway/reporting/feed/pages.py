"""Open pages: each has a bounded queue of events that are written once for all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from wisp_gateway.inbound import sse
from wisp_gateway.reporting.feed.errors import TooManyPages

MAX_PAGES = 64
MAX_PAGES_EACH = 32  # of one key, or of one host without keys
MAX_BEHIND = 64
RETRY_S = 30

View = frozenset[str] | None
"""Keys of the models that a page may show; None: all."""


def event(kind: str, data: Any) -> bytes:
    """Return one server-sent event."""
    return sse.event(kind, json.dumps(data, ensure_ascii=False, separators=(",", ":")))


class Page:
    """One page: what it may show, and the events that it has not been sent.

    Args:
        account: account that it counts for.
    """

    def __init__(self, view: View, account: str) -> None:
        self.view, self.account = view, account
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
        self._pending: list[tuple[str, bytes, bytes]] = []  # model, event, and the event for models' own keys

    def __len__(self) -> int:
        return len(self._pages)

    def open(self, view: View, account: str) -> Page:
        """Add a page.

        Raises:
            TooManyPages: there are as many as may be, of all or of ``account``.
        """
        if len(self._pages) >= MAX_PAGES:
            message = f"{MAX_PAGES} pages follow this gateway already. Close one."
            raise TooManyPages(message, retry_after_s=RETRY_S)
        if sum(page.account == account for page in self._pages) >= MAX_PAGES_EACH:
            message = f"{MAX_PAGES_EACH} pages of yours follow this gateway already. Close one."
            raise TooManyPages(message, retry_after_s=RETRY_S)
        page = Page(view, account)
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

    def add(self, kind: str, key: str, data: Any, reduced: Any = None) -> None:
        """Add an event about a model, for the pages that may show it; :meth:`flush` sends it.

        Args:
            reduced: data for the pages of the model's own keys, if others may not see all of it.
        """
        if self._pages:
            full = event(kind, data)
            self._pending.append((key, full, full if reduced is None else event(kind, reduced)))

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


def _seen_by(view: View, events: Iterable[tuple[str, bytes, bytes]]) -> Iterable[bytes]:
    if view is None:
        return (full for _, full, _ in events)
    return (reduced for key, _, reduced in events if key in view)
