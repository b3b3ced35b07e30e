"""Events of a response's stream, and a log of them that may be read while it grows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

EVENT_BYTES = 128  # of an event's object, besides its text
CAUGHT_UP = b": no further events\n\n"


class Event(NamedTuple):
    """One event.

    Attributes:
        kind: its ``type``.
        fields: JSON text of its other fields, without braces and ``sequence_number``.
    """

    kind: str
    fields: str

    def sse(self, number: int) -> bytes:
        """Return the event as the ``number``-th of a stream, counted from 0."""
        data = f'{{"type":"{self.kind}","sequence_number":{number},{self.fields}}}'
        return f"event: {self.kind}\ndata: {data}\n\n".encode()


class EventLog:
    """Events of one response, for any number of readers at any place.

    Attributes:
        size_bytes: bytes they take.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._is_closed = False
        self._has_grown = asyncio.Event()
        self.size_bytes = 0

    def add(self, events: Sequence[Event]) -> None:
        """Append events and wake the readers."""
        self._events += events
        self.size_bytes += sum(sys.getsizeof(event.fields) + EVENT_BYTES for event in events)
        self._wake()

    def close(self) -> None:
        """Say that no further event comes."""
        self._is_closed = True
        self._wake()

    async def follow(self, starting_after: int = -1) -> AsyncGenerator[bytes, None]:
        """Yield the events behind number ``starting_after`` until the last, as texts of a stream.

        Where none comes, the stream is one comment: it has to have something.
        """
        first = number = starting_after + 1
        while True:
            while number < len(self._events):
                yield self._events[number].sse(number)
                number += 1
            if self._is_closed:
                if number == first:
                    yield CAUGHT_UP
                return
            await self._has_grown.wait()

    def _wake(self) -> None:
        self._has_grown.set()
        self._has_grown = asyncio.Event()
