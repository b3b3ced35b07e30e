"""Subscribers of the feed (open pages), each with a bounded queue; an event is written once for all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from wisp_gateway.inbound import sse
from wisp_gateway.reporting.feed.errors import TooManySubscribers

MAX_SUBSCRIBERS = 64
MAX_SUBSCRIBERS_EACH = 32  # with one key, or from one host without keys
MAX_BEHIND = 64
RETRY_S = 30

VisibleModels = frozenset[str] | None
"""Keys of the models that a subscriber may read about; None: all."""


def may_read(visible: VisibleModels, key: str) -> bool:
    """Return whether the model ``key`` is among those that are visible."""
    return visible is None or key in visible


def visible_part(sample: dict[str, Any], visible: VisibleModels) -> dict[str, Any]:
    """Return a sample with the visible models alone."""
    return sample | {"models": {key: row for key, row in sample["models"].items() if may_read(visible, key)}}


def event(kind: str, data: Any) -> bytes:
    """Return one server-sent event."""
    return sse.event(kind, json.dumps(data, ensure_ascii=False, separators=(",", ":")))


class Subscriber:
    """One open page: the models it may read about, and the events that it has not been sent.

    Args:
        visible: models that it may read about.
        account: sender's account (a key, or a host), which may have a part of all subscribers.
    """

    def __init__(self, visible: VisibleModels, account: str) -> None:
        self.visible, self.account = visible, account
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, events: bytes) -> None:
        """Add events; a subscriber that is too far behind is ended."""
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


class Subscribers:
    """All subscribers."""

    def __init__(self) -> None:
        self._subscribers: set[Subscriber] = set()
        self._is_closed = False
        self._pending: list[tuple[str, bytes, bytes]] = []  # model, event, and the event for models' own keys

    def __len__(self) -> int:
        return len(self._subscribers)

    def open(self, visible: VisibleModels, account: str) -> Subscriber:
        """Add a subscriber.

        Raises:
            TooManySubscribers: there are as many as may be, of all or of ``account``.
        """
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            message = f"{MAX_SUBSCRIBERS} pages follow this gateway already. Close one."
            raise TooManySubscribers(message, retry_after_s=RETRY_S)
        if sum(subscriber.account == account for subscriber in self._subscribers) >= MAX_SUBSCRIBERS_EACH:
            message = f"{MAX_SUBSCRIBERS_EACH} pages of yours follow this gateway already. Close one."
            raise TooManySubscribers(message, retry_after_s=RETRY_S)
        subscriber = Subscriber(visible, account)
        self._subscribers.add(subscriber)
        if self._is_closed:
            subscriber.end()
        return subscriber

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a subscriber."""
        self._subscribers.discard(subscriber)

    def close(self) -> None:
        """End every subscriber: the gateway stops."""
        self._is_closed = True
        for subscriber in self._subscribers:
            subscriber.end()

    def add(self, kind: str, key: str, data: Any, reduced: Any = None) -> None:
        """Add an event about a model, for the subscribers that may read it; :meth:`flush` sends it.

        Args:
            reduced: data for the holders of the model's own keys, if others may not see all of it.
        """
        if self._subscribers:
            full = event(kind, data)
            self._pending.append((key, full, full if reduced is None else event(kind, reduced)))

    def add_sample(self, sample: dict[str, Any]) -> None:
        """Add a sample; each subscriber gets its models' part."""
        for visible in {subscriber.visible for subscriber in self._subscribers}:
            part = visible_part(sample, visible)
            if part["models"]:
                self._send(visible, event("sample", part))

    def flush(self) -> None:
        """Send what was added, as one chunk a subscriber."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        for visible in {subscriber.visible for subscriber in self._subscribers}:
            chunk = b"".join(_visible_events(visible, pending))
            if chunk:
                self._send(visible, chunk)

    def _send(self, visible: VisibleModels, chunk: bytes) -> None:
        for subscriber in self._subscribers:
            if subscriber.visible == visible:
                subscriber.put(chunk)


def _visible_events(visible: VisibleModels, events: Iterable[tuple[str, bytes, bytes]]) -> Iterable[bytes]:
    if visible is None:
        return (full for _, full, _ in events)
    return (reduced for key, _, reduced in events if key in visible)
